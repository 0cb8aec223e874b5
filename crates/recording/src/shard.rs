//! A share of a run's prompts, for machines that record one run together.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// One of several shares. Which prompts are its own depends on their ids alone, so that more prompts or another order move none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1 on.
    number: usize,
    of: usize,
}

/// Schedulers' variables: a task's number from 0 on, and how many there are.
const BY_RANK: [[&str; 2]; 5] = [
    ["SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"],
    ["SLURM_PROCID", "SLURM_NTASKS"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "PMI_SIZE"],
    ["RANK", "WORLD_SIZE"],
];

impl Shard {
    /// The share of that number, from 1 on; `None` where there are not so many.
    pub fn new(number: usize, of: usize) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Whether a prompt is of this share.
    pub fn has(self, prompt_id: &str) -> bool {
        let digest = Sha256::digest(prompt_id);
        let hash = digest.iter().take(8).fold(0u64, |hash, &byte| hash << 8 | u64::from(byte));
        hash % self.of as u64 == self.number as u64 - 1
    }

    /// The share of a task of Slurm, SkyPilot, MPI or torchrun, from the environment: an array's task first, then the rank among
    /// tasks. `None` where there is none.
    pub fn of_task(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let of_array = || {
            let (task, count) = (number("SLURM_ARRAY_TASK_ID")?, number("SLURM_ARRAY_TASK_COUNT")?);
            let first = number("SLURM_ARRAY_TASK_MIN").unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP").unwrap_or(1).max(1);
            Self::new(task.checked_sub(first)? / step + 1, count)
        };
        let by_rank = |[rank, count]: [&str; 2]| Self::new(number(rank)?.checked_add(1)?, number(count)?);
        of_array().or_else(|| BY_RANK.into_iter().find_map(by_rank))
    }

    /// The folder of its run within the one of all.
    pub fn folder_name(self) -> String {
        format!("shard-{}-of-{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        numbers
            .and_then(|(number, of)| Self::new(number, of))
            .ok_or_else(|| "give NUMBER/OF with a number from 1 on, e.g. 2/4, or auto".to_owned())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_prompt_is_of_one_share_always_the_same() {
        let shards: Vec<Shard> = (1..=5).map(|number| Shard::new(number, 5).unwrap()).collect();
        let mut sizes = [0; 5];
        for index in 0..1_000 {
            let id = format!("prompt-{index}");
            let of: Vec<usize> = (0..5).filter(|&at| shards[at].has(&id)).collect();
            assert_eq!(of.len(), 1, "{id}");
            sizes[of[0]] += 1;
        }
        assert!(sizes.iter().all(|&size| (150..250).contains(&size)), "{sizes:?}");
        // A hash that is published: another version must not deal otherwise.
        let first: Vec<usize> =
            (0..8).map(|index| (0..5).find(|&at| shards[at].has(&format!("a{index}"))).unwrap()).collect();
        assert_eq!(first, [4, 0, 0, 3, 4, 1, 3, 4]);
    }

    #[test]
    fn numbers_are_from_one_to_the_last() {
        assert_eq!("2/4".parse::<Shard>().unwrap().to_string(), "2/4");
        for wrong in ["", "2", "0/4", "5/4", "a/4", "1/0", "-1/4", "1/4/2"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn schedulers_say_which_share_a_task_has() {
        let shard = |pairs: &[(&str, &str)]| {
            let variables: BTreeMap<&str, &str> = pairs.iter().copied().collect();
            Shard::of_task(&|name| variables.get(name).map(|&value| value.to_owned()))
                .map(|shard| shard.to_string())
        };
        let array = [("SLURM_ARRAY_TASK_ID", "6"), ("SLURM_ARRAY_TASK_COUNT", "4")];
        // --array=2-8:2
        let stepped = [array[0], array[1], ("SLURM_ARRAY_TASK_MIN", "2"), ("SLURM_ARRAY_TASK_STEP", "2")];
        assert_eq!(shard(&stepped).unwrap(), "3/4");
        assert_eq!(shard(&array), None);
        assert_eq!(shard(&[("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_NODES", "2")]).unwrap(), "1/2");
        assert_eq!(shard(&[("RANK", "3"), ("WORLD_SIZE", "4")]).unwrap(), "4/4");
        assert_eq!(shard(&[("RANK", "4"), ("WORLD_SIZE", "4")]), None);
        assert_eq!(shard(&[("RANK", "x"), ("WORLD_SIZE", "4")]), None);
    }
}
