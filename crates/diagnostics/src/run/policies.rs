//! `policies.parquet`: attention of the decode queries under policies, along the recorded continuations. `record --policy` adds a
//! policy prompt by prompt.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use layerscope_engine::Result;
use ndarray::Array2;

use super::durable::{lock, rename, sync_folder, temporary_name};
use super::rows::Columns;
use super::rows_read::PromptRows;
use super::schema::{POLICIES as COLUMNS, Table, schema_of};
use super::table_file::TableFile;
use super::{Run, figures, layout, parquet_file};
use crate::prompts::check_name;
use crate::record::{AttentionMeans, PolicyRecord};

/// The file's name in a run folder.
pub const POLICIES: &str = "policies.parquet";

/// The records of a run, in the order of prompts and in which policies were added; empty if there is no file.
pub(super) fn read(run: &Run) -> Result<Vec<PolicyRecord>> {
    let Some(file) = TableFile::open(run.folder().join(POLICIES), &COLUMNS)? else { return Ok(vec![]) };
    let known: BTreeSet<&String> = run.prompt_ids().iter().collect();
    if let Some(id) = file.prompt_ids()?.iter().find(|id| !known.contains(id)) {
        return Err(file.damaged(&format!("the run has no prompt {id:?}")));
    }
    let mut records = vec![];
    for id in run.prompt_ids() {
        let rows = PromptRows::read(&file, id, &[])?;
        if rows.len() > 0 {
            let prompt = run.source(id, Table::Prompts)?;
            let steps = PromptRows::read(prompt.get(), id, &["steps"])?.counts("steps")?;
            let steps = steps.first().copied().unwrap_or(0);
            records.extend(of_prompt(&rows, id, [run.manifest().model.layers, steps])?);
        }
    }
    Ok(records)
}

/// The records of a prompt; each has a row for every layer and step.
fn of_prompt(
    rows: &PromptRows<'_>,
    prompt_id: &str,
    [layers, steps]: [usize; 2],
) -> Result<Vec<PolicyRecord>> {
    let (policies, divergences) = (rows.texts("policy")?, figures::divergences(rows)?);
    let mut places: BTreeMap<&String, Vec<Option<usize>>> = BTreeMap::new();
    let mut order: Vec<(&String, usize)> = vec![];
    let keys = rows.counts("layer")?.into_iter().zip(rows.counts("step")?);
    for (row, (policy, (layer, step))) in policies.iter().zip(keys).enumerate() {
        check_name(policy).map_err(|problem| rows.damaged(format!("a policy has {problem}")))?;
        let places = places.entry(policy).or_insert_with(|| {
            order.push((policy, row));
            vec![]
        });
        let place = layer.checked_mul(steps).and_then(|first| first.checked_add(step));
        let place = place.filter(|&place| layer < layers && step < steps && place < rows.len());
        let place =
            place.ok_or_else(|| rows.damaged("a layer or step out of range, or too few rows".to_owned()))?;
        if places.len() <= place {
            places.resize(place + 1, None);
        }
        if places[place].replace(row).is_some() {
            return Err(rows.damaged(format!("policy {policy} has a layer and step twice")));
        }
    }
    let columns =
        ["bos_mass", "prompt_mass", "decode_mass", "prompt_entropy", "prompt_entropy_nats", "selectivity"];
    let columns = columns.map(|name| rows.figures(name));
    let mut figures = vec![];
    for column in columns {
        figures.push(column?);
    }
    let record = |(policy, first_row): (&String, usize)| {
        let places: Option<Vec<usize>> = places[policy].iter().copied().collect();
        let places = places.filter(|places| Some(places.len()) == layers.checked_mul(steps));
        let places = places.ok_or_else(|| rows.damaged(format!("policy {policy} lacks a layer or step")))?;
        let array = |column: &Vec<f64>| {
            let values = places.iter().map(|&row| column[row]).collect();
            Array2::from_shape_vec((layers, steps), values)
                .map_err(|_| rows.damaged("rows are missing".to_owned()))
        };
        Ok(PolicyRecord {
            prompt_id: prompt_id.to_owned(),
            policy: policy.clone(),
            divergence: divergences[first_row],
            attention: AttentionMeans {
                bos_mass: array(&figures[0])?,
                prompt_mass: array(&figures[1])?,
                decode_mass: array(&figures[2])?,
                prompt_entropy: array(&figures[3])?,
                prompt_entropy_nats: array(&figures[4])?,
                selectivity: array(&figures[5])?,
            },
        })
    };
    order.into_iter().map(record).collect()
}

/// Adds what policies do to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct PoliciesWriter {
    folder: PathBuf,
    /// The recorded prompts, in the order of the file.
    prompt_ids: Vec<String>,
    records: Vec<PolicyRecord>,
    _lock: File,
}

impl PoliciesWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Input`] if the file is damaged, or another process is writing to the
    /// folder; [`layerscope_engine::Error::Failure`] if it cannot be written.
    pub fn open(run: &Run) -> Result<Self> {
        let lock = lock(run.folder(), layout::LOCK)?;
        let (folder, prompt_ids) = (run.folder().to_owned(), run.prompt_ids().to_vec());
        Ok(Self { folder, prompt_ids, records: read(run)?, _lock: lock })
    }

    /// Whether a prompt is there under a policy.
    pub fn has(&self, prompt_id: &str, policy: &str) -> bool {
        self.records.iter().any(|known| known.prompt_id == prompt_id && known.policy == policy)
    }

    /// Adds records; durable once this returns.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Failure`] if the folder cannot be written; the earlier file is kept.
    pub fn put(&mut self, added: Vec<PolicyRecord>) -> Result<()> {
        let is_new = |known: &PolicyRecord| {
            !added.iter().any(|new| new.prompt_id == known.prompt_id && new.policy == known.policy)
        };
        let mut records: Vec<PolicyRecord> =
            self.records.iter().filter(|known| is_new(known)).cloned().collect();
        records.extend(added);
        records.sort_by_key(|record| self.prompt_ids.iter().position(|id| *id == record.prompt_id));
        let temporary = self.folder.join(temporary_name(POLICIES));
        parquet_file::write(&temporary, &COLUMNS, |take| {
            records.iter().try_for_each(|record| take(batch(record)?))
        })?;
        rename(&temporary, &self.folder.join(POLICIES))?;
        sync_folder(&self.folder)?;
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
