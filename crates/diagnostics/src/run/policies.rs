//! `policies.parquet`: attention of the decode queries under policies, along the recorded continuations. `record --policy` adds a
//! policy prompt by prompt.

use layerscope_engine::Result;

use super::added_table::{AddedTable, count_of_prompt, each_prompt};
use super::rows::Columns;
use super::rows_read::PromptRows;
use super::schema::{POLICIES as COLUMNS, schema_of};
use super::{Run, figures};
use crate::prompts::check_policy_name;
use crate::record::PolicyRecord;

/// The file's name in a run folder.
pub const POLICIES: &str = "policies.parquet";

/// The records of some prompts, in the order in which policies were added; empty if there is no file.
pub(super) fn read(run: &Run, prompt_ids: &[String]) -> Result<Vec<PolicyRecord>> {
    let mut records = vec![];
    each_prompt(run, prompt_ids, (POLICIES, &COLUMNS), |id, rows| {
        let steps = count_of_prompt(run, id, "steps")?;
        records.extend(of_prompt(rows, id, [run.manifest().model.layers, steps])?);
        Ok(())
    })?;
    Ok(records)
}

/// The records of a prompt; each has a row for every layer and step, one after the other.
fn of_prompt(
    rows: &PromptRows<'_>,
    prompt_id: &str,
    [layers, steps]: [usize; 2],
) -> Result<Vec<PolicyRecord>> {
    let mut records: Vec<PolicyRecord> = vec![];
    for (policy, rows) in rows.runs_of("policy")? {
        check_policy_name(&policy).map_err(|problem| rows.damaged(format!("a policy has {problem}")))?;
        if records.iter().any(|known| known.policy == policy) {
            return Err(rows.damaged(format!("policy {policy} has a layer and step twice")));
        }
        if Some(rows.len()) != layers.checked_mul(steps) {
            return Err(rows.damaged(format!("policy {policy} lacks a layer or step, or has too many")));
        }
        records.push(PolicyRecord {
            prompt_id: prompt_id.to_owned(),
            divergence: figures::divergences(&rows)?[0],
            attention: figures::attention_by_step(&rows, layers, steps)?,
            policy,
        });
    }
    Ok(records)
}

/// Adds what policies do to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct PoliciesWriter {
    table: AddedTable,
    records: Vec<PolicyRecord>,
}

impl PoliciesWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Input`] if the file is damaged, or another process is writing to the
    /// folder; [`layerscope_engine::Error::Failure`] if it cannot be written.
    pub fn open(run: &Run) -> Result<Self> {
        Ok(Self { table: AddedTable::lock(run, POLICIES, &COLUMNS)?, records: read(run, run.prompt_ids())? })
    }

    /// Whether a prompt is there under a policy.
    pub fn has(&self, prompt_id: &str, policy: &str) -> bool {
        self.records.iter().any(|known| known.prompt_id == prompt_id && known.policy == policy)
    }

    /// Adds records, or replaces those of the same prompts and policies; durable once this returns.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Failure`] if the folder cannot be written; the earlier file is kept.
    pub fn put(&mut self, added: Vec<PolicyRecord>) -> Result<()> {
        let key = |of: &PolicyRecord| (of.prompt_id.clone(), of.policy.clone());
        let mut records = self.records.clone();
        records.retain(|known| added.iter().all(|new| key(known) != key(new)));
        records.extend(added);
        records.sort_by_key(|record| self.table.place(&record.prompt_id));
        self.table.replace(records.iter().map(batch))?;
        self.records = records;
        Ok(())
    }
}

fn batch(record: &PolicyRecord) -> Result<arrow_array::RecordBatch> {
    let (layers, steps) = record.attention.bos_mass.dim();
    let rows = layers * steps;
    let mut columns = Columns::of_prompt(POLICIES, schema_of(&COLUMNS), &record.prompt_id, rows);
    columns.texts((0..rows).map(|_| &record.policy));
    columns.ints((0..rows).map(|row| row / steps))?;
    columns.ints((0..rows).map(|row| row % steps))?;
    columns.divergences(&vec![record.divergence; rows]);
    columns.attention(&record.attention);
    columns.finish()
}
