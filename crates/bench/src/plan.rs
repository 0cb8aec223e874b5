//! The policies and lengths to measure, and their order.

use layerscope_engine::{Device, Error, ModelConfig, Policy, Result};

/// Default number of new tokens.
pub const DEFAULT_NEW_TOKENS: usize = 128;

/// Default number of counted repeats.
pub const DEFAULT_REPEATS: usize = 5;

/// Policies × prompt lengths.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// The policies, without duplicates.
    pub policies: Vec<Policy>,
    /// Prompt lengths p, tokens, without duplicates.
    pub lengths: Vec<usize>,
    /// Tokens per generation, N.
    pub new_tokens: usize,
    /// Counted repeats.
    pub repeats: usize,
    /// Whether decode steps also compute attention statistics.
    pub statistics: bool,
}

impl BenchPlan {
    /// Checks that a model can run the plan.
    ///
    /// # Errors
    /// [`Error::Input`] if the plan is empty, has duplicates, or exceeds the context.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        if self.policies.is_empty() || self.lengths.is_empty() {
            return Err(Error::input("nothing to measure; name at least one policy and one length"));
        }
        if self.new_tokens == 0 || self.repeats == 0 {
            return Err(Error::input("nothing to measure; new tokens and repeats must be at least 1"));
        }
        for (index, policy) in self.policies.iter().enumerate() {
            if self.policies[..index].contains(policy) {
                return Err(Error::input(format!("two of the policies are {policy}; name each once")));
            }
        }
        for (index, length) in self.lengths.iter().enumerate() {
            if self.lengths[..index].contains(length) {
                return Err(Error::input(format!("the length {length} is given twice; name each once")));
            }
            // The last new token is not fed to the model.
            if *length == 0 || (length - 1).saturating_add(self.new_tokens) > config.context {
                return Err(Error::input(format!(
                    "a prompt of {length} tokens with {} new ones does not fit the model's context of {}; choose \
                     lengths from 1 to {}",
                    self.new_tokens,
                    config.context,
                    (config.context + 1).saturating_sub(self.new_tokens)
                )));
            }
        }
        Ok(())
    }

    /// The default policies: the full model, and SPEED at three quarters of the layers, as in the paper,
    /// without and with an anchor.
    ///
    /// # Errors
    /// None for a model with layers.
    pub fn default_policies(layers: usize) -> Result<Vec<Policy>> {
        let cutoff = (3 * layers).div_ceil(4);
        let mut policies = vec![Policy::full(layers)];
        if cutoff < layers {
            policies.extend([Policy::speed(cutoff, false, layers)?, Policy::speed(cutoff, true, layers)?]);
        }
        Ok(policies)
    }

    /// The policies and their indices in the order of a round; each round starts with the next policy.
    pub fn round(&self, round: usize) -> impl Iterator<Item = (usize, Policy)> {
        let count = self.policies.len();
        let policies = self.policies.iter().cloned().enumerate().cycle();
        policies.skip(round % count.max(1)).take(count)
    }

    /// The largest [`Policy::in_memory`] of the plan.
    pub fn most_in_memory(&self, device: &Device) -> Vec<usize> {
        let kept = self.policies.iter().flat_map(|policy| {
            self.lengths.iter().map(|&length| policy.in_memory(length, self.new_tokens, device))
        });
        kept.max_by_key(|kept| kept.iter().sum::<usize>()).unwrap_or_default()
    }

    /// Layer tokens that one generation computes.
    pub(crate) fn layer_tokens(&self, policy: &Policy, length: usize) -> u64 {
        policy.layer_tokens(length, self.new_tokens).block as u64
    }

    /// Layer tokens of the whole plan, including warm-ups; roughly proportional to time.
    pub(crate) fn work(&self) -> u64 {
        let round =
            |length: usize| self.policies.iter().map(move |p| self.layer_tokens(p, length)).sum::<u64>();
        (self.repeats as u64 + 1) * self.lengths.iter().map(|&length| round(length)).sum::<u64>()
    }
}

/// Parses a number of tokens: `512` or `4k` (= 4,096).
///
/// # Errors
/// [`Error::Input`] on anything else, and on 0.
pub fn parse_length(text: &str) -> Result<usize> {
    let (number, unit) = match text.trim().strip_suffix(['k', 'K']) {
        Some(number) => (number, 1_024),
        None => (text.trim(), 1),
    };
    // `parse` would accept a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let length = number.parse::<usize>().ok().filter(|_| digits).and_then(|n| n.checked_mul(unit));
    length.filter(|&length| length > 0).ok_or_else(|| {
        Error::input(format!("`{text}` is no length; give tokens as 512, 4k (= 4,096) or 128k"))
    })
}

/// Parses lengths separated by commas.
///
/// # Errors
/// As [`parse_length`].
pub fn parse_lengths(list: &str) -> Result<Vec<usize>> {
    list.split(',').map(parse_length).collect()
}

/// Policy names separated by commas. A name may contain commas between numbers: a part that starts with a digit continues it.
pub fn split_policies(list: &str) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for piece in list.split(',').map(str::trim) {
        match names.last_mut() {
            Some(name) if piece.starts_with(|c: char| c.is_ascii_digit()) => {
                name.push(',');
                name.push_str(piece);
            }
            _ => names.push(piece.to_owned()),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_engine::Shape;
    use proptest::prelude::*;

    fn plan(policies: &[&str], lengths: &[usize]) -> BenchPlan {
        let policies = policies.iter().map(|name| Policy::parse(name, 30).expect("a policy")).collect();
        BenchPlan { policies, lengths: lengths.to_vec(), new_tokens: 8, repeats: 2, statistics: false }
    }

    #[test]
    fn lengths_are_read() {
        assert_eq!(parse_lengths("512,1k, 2K ,128k").expect("lengths"), [512, 1_024, 2_048, 131_072]);
        for wrong in [
            "",
            "0",
            "0k",
            "k",
            "-1",
            "+1",
            "1.5k",
            "1m",
            "512,",
            "99999999999999999999",
            "99999999999999999k",
        ] {
            let error = parse_lengths(wrong).expect_err(wrong);
            assert_eq!(error.exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn policies_are_split() {
        assert_eq!(split_policies("full,speed:24, speed:24+bos"), ["full", "speed:24", "speed:24+bos"]);
        assert_eq!(split_policies("drop:3,5-7+bos,full"), ["drop:3,5-7+bos", "full"]);
        assert_eq!(split_policies(""), [""]);
    }

    #[test]
    fn default_policies_are_the_papers() {
        let names = |layers| {
            let policies = BenchPlan::default_policies(layers).expect("policies");
            policies.iter().map(Policy::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(32), ["full", "speed:24", "speed:24+bos"]);
        assert_eq!(names(1), ["full"]);
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_runs() {
        let shape = Shape::named("smollm2-135m").expect("a shape");
        let refusal = |plan: BenchPlan| plan.check(shape.config()).expect_err("refused").to_string();
        let most = 8_192 - 8 + 1;
        assert!(plan(&["full"], &[1, most]).check(shape.config()).is_ok());
        assert!(refusal(plan(&["full"], &[most + 1])).contains("8192"));
        assert!(refusal(BenchPlan { new_tokens: usize::MAX, ..plan(&["full"], &[9]) }).contains("8192"));
        assert!(refusal(plan(&["full", "speed:3", "full"], &[9])).contains("are full"));
        assert!(refusal(plan(&["full"], &[9, 10, 9])).contains("length 9"));
        assert!(refusal(plan(&[], &[9])).contains("nothing"));
        assert!(refusal(BenchPlan { repeats: 0, ..plan(&["full"], &[9]) }).contains("repeats"));
    }

    proptest! {
        #[test]
        fn a_round_runs_every_policy_once_and_rounds_rotate(count in 1_usize..8, round in 0_usize..50) {
            let names: Vec<String> = (1..=count).map(|cutoff| format!("speed:{cutoff}")).collect();
            let plan = plan(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[9]);
            let order = |round| plan.round(round).map(|(index, _)| index).collect::<Vec<_>>();
            let mut sorted = order(round);
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            // Every policy is first equally often.
            let mut first: Vec<usize> = (round..round + count).map(|round| order(round)[0]).collect();
            first.sort_unstable();
            prop_assert_eq!(first, (0..count).collect::<Vec<_>>());
            for (index, policy) in plan.round(round) {
                prop_assert_eq!(policy.to_string(), names[index].clone());
            }
        }

        #[test]
        fn any_text_is_a_length_or_an_error(text in ".*") {
            let _ = parse_lengths(&text);
        }
    }
}
