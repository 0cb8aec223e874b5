//! `patches.parquet`: maps of activation patches between recorded prompts. Recording does not write it; `layerscope patch` adds a map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use layerscope_engine::Result;

use super::Run;
use super::added_table::{AddedTable, each_prompt};
use super::durable::{rename, temporary_name};
use super::parquet_file;
use super::rows::Columns;
use super::rows_read::{MOST_TEXT, PromptRows};
use super::schema::{PATCHES as COLUMNS, Table, schema_of};
use crate::patching::{
    PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt,
};
use crate::ranges;

/// The file's name in a run folder.
pub const PATCHES: &str = "patches.parquet";

/// The maps of a run, in the order of clean and corrupted prompts; empty if there is no file.
pub(super) fn read(run: &Run) -> Result<Vec<PatchMap>> {
    let mut reader = Reader { run, tokens: BTreeMap::new(), room: MOST_TEXT };
    let mut maps = vec![];
    each_prompt(run, run.prompt_ids(), (PATCHES, &COLUMNS), |id, rows| {
        for (_, rows) in rows.runs_of_count("map")? {
            maps.push(reader.map(id, &rows)?);
        }
        Ok(())
    })?;
    Ok(maps)
}

/// What maps share, and what they may take.
struct Reader<'a> {
    run: &'a Run,
    /// Tokens of prompts that are read.
    tokens: BTreeMap<String, Arc<[PatchToken]>>,
    /// Bytes of texts and positions that are left: a small file can repeat long ones any number of times.
    room: usize,
}

impl Reader<'_> {
    /// The map whose cells are these rows.
    fn map(&mut self, clean_id: &str, rows: &PromptRows<'_>) -> Result<PatchMap> {
        let model = &self.run.manifest().model;
        let corrupted_id = self.text(rows, "corrupted_id")?;
        let clean = self.prompt(rows, clean_id.to_owned(), "clean")?;
        let corrupted = self.prompt(rows, corrupted_id, "corrupted")?;
        let p = clean.tokens.len();
        if corrupted.tokens.len() != p {
            return Err(rows.damaged("prompts of different lengths are patched"));
        }
        let unknown = |name: &str| rows.damaged(format!("{name} is none that this version knows"));
        let site = PatchSite::from_name(&self.text(rows, "site")?).ok_or_else(|| unknown("site"))?;
        let direction = PatchDirection::from_name(&self.text(rows, "direction")?);
        let metric = PatchMetric::from_name(&self.text(rows, "metric")?);
        let is_head = site == PatchSite::Head;
        let head_positions = match rows.one_text("head_positions", &mut self.room)? {
            None if !is_head => vec![],
            Some(text) if is_head => {
                let room = self.room / size_of::<usize>();
                let positions = ranges::parse(&text, p.min(room));
                let positions =
                    positions.ok_or_else(|| rows.damaged(format!("{text} are no positions of a head")))?;
                self.room -= positions.len() * size_of::<usize>();
                positions
            }
            _ => return Err(rows.damaged("head_positions are there without heads, or the other way around")),
        };
        let [columns, unused] = if is_head { ["head", "position"] } else { ["position", "head"] };
        if rows.optional_counts(unused)?.iter().any(Option::is_some) {
            return Err(rows.damaged("a cell is of a position and a head at once"));
        }
        let at: Option<Vec<usize>> = rows.optional_counts(columns)?.into_iter().collect();
        let at = at.ok_or_else(|| rows.damaged(format!("a cell has no {columns}")))?;
        let most = [model.layers, if is_head { model.heads } else { p }];
        let [layers, columns] = axes(&rows.counts("layer")?, &at, most).ok_or_else(|| {
            rows.damaged("the cells of a map are not all of its layers and columns, in order")
        })?;
        Ok(PatchMap {
            site,
            direction: direction.ok_or_else(|| unknown("direction"))?,
            metric: metric.ok_or_else(|| unknown("metric"))?,
            clean,
            corrupted,
            answer: self.token(rows, "answer")?,
            wrong: self.token(rows, "wrong")?,
            layers,
            columns,
            head_positions,
            cells: cells(rows)?,
        })
    }

    /// A prompt, with the tokens that were recorded and the figures of its run without a patch.
    fn prompt(&mut self, rows: &PromptRows<'_>, id: String, name: &str) -> Result<PatchedPrompt> {
        let tokens = match self.tokens.get(&id) {
            Some(tokens) => Arc::clone(tokens),
            None if !self.run.prompt_ids().contains(&id) => {
                return Err(rows.damaged(format!("the run has no prompt {id:?}")));
            }
            None => {
                let tokens = tokens(self.run, &id)?;
                self.tokens.insert(id.clone(), Arc::clone(&tokens));
                tokens
            }
        };
        let figures = PatchFigures {
            logit_diff: rows.one_figure(&format!("{name}_logit_diff"))?,
            kl: rows.one_figure(&format!("{name}_kl"))?,
        };
        Ok(PatchedPrompt { id, tokens, next: self.token(rows, &format!("{name}_next"))?, figures })
    }

    fn token(&mut self, rows: &PromptRows<'_>, name: &str) -> Result<PatchToken> {
        Ok(PatchToken { id: rows.one_token_id(&format!("{name}_id"))?, text: self.text(rows, name)? })
    }

    fn text(&mut self, rows: &PromptRows<'_>, name: &str) -> Result<String> {
        let text = rows.one_text(name, &mut self.room)?;
        text.ok_or_else(|| rows.damaged(format!("the column {name} holds other or too many values")))
    }
}

/// A recorded prompt's tokens.
fn tokens(run: &Run, id: &str) -> Result<Arc<[PatchToken]>> {
    let source = run.source(id, Table::Prompts)?;
    let rows = PromptRows::read(source.get(), id, &["tokens", "token_text"])?;
    let (ids, texts) = (rows.token_id_lists("tokens")?.concat(), rows.text_lists("token_text")?.concat());
    if ids.len() != texts.len() {
        return Err(rows.damaged("tokens and their texts differ in number"));
    }
    Ok(ids.into_iter().zip(texts).map(|(id, text)| PatchToken { id, text }).collect())
}

fn cells(rows: &PromptRows<'_>) -> Result<Vec<Option<PatchFigures>>> {
    let figures = rows.figures("logit_diff")?.into_iter().zip(rows.figures("kl")?);
    let cells = rows.bools("done")?.into_iter().zip(figures);
    Ok(cells.map(|(done, (logit_diff, kl))| done.then_some(PatchFigures { logit_diff, kl })).collect())
}

/// Layers and columns of a map from those of its cells, row by row; `None` where cells are missing, doubled or out of order, or one is
/// not below the `most` of its axis.
fn axes(layers: &[usize], columns: &[usize], most: [usize; 2]) -> Option<[Vec<usize>; 2]> {
    let mut of_rows = layers.to_vec();
    of_rows.dedup();
    let across = layers.len().checked_div(of_rows.len())?;
    let of_columns = columns.get(..across)?.to_vec();
    let ascend = |places: &[usize], most: usize| {
        places.windows(2).all(|pair| pair[0] < pair[1]) && places.last().is_some_and(|&last| last < most)
    };
    let is_whole = layers.len() == of_rows.len() * across
        && layers.chunks(across.max(1)).all(|row| row.iter().all(|layer| *layer == row[0]))
        && columns.chunks(across.max(1)).all(|row| row == of_columns);
    (is_whole && ascend(&of_rows, most[0]) && ascend(&of_columns, most[1])).then_some([of_rows, of_columns])
}

/// Adds maps to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct PatchesWriter {
    table: AddedTable,
    maps: Vec<PatchMap>,
}

impl PatchesWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Input`] if the file is damaged, or another process is writing to the
    /// folder; [`layerscope_engine::Error::Failure`] if it cannot be written.
    pub fn open(run: &Run) -> Result<Self> {
        Ok(Self { table: AddedTable::lock(run, PATCHES, &COLUMNS)?, maps: read(run)? })
    }

    /// Adds a map, or replaces the one of the same question, unless more of that is computed; durable once this returns. Whether the file
    /// has the map now.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Failure`] if the folder cannot be written; the earlier file is kept.
    pub fn put(&mut self, map: PatchMap) -> Result<bool> {
        if self.maps.iter().any(|known| known.asks_as(&map) && known.done() > map.done()) {
            return Ok(false);
        }
        let mut maps = self.maps.clone();
        maps.retain(|known| !known.asks_as(&map));
        maps.push(map);
        maps.sort_by_key(|of| [&of.clean, &of.corrupted].map(|prompt| self.table.place(&prompt.id)));
        self.table.replace(maps.iter().enumerate().map(|(number, map)| batch(number, map)))?;
        self.maps = maps;
        Ok(true)
    }
}

/// Writes a map as a table of its own; an earlier file is replaced once all is written.
///
/// # Errors
/// [`layerscope_engine::Error::Failure`] if it cannot be written.
pub fn write_patching(path: &Path, map: &PatchMap) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(temporary_name(&name));
    parquet_file::write(&temporary, &COLUMNS, |take| take(batch(0, map)?))?;
    rename(&temporary, path)
}

/// A row for each cell.
fn batch(number: usize, map: &PatchMap) -> Result<RecordBatch> {
    let is_head = map.site == PatchSite::Head;
    let places =
        || map.layers.iter().flat_map(|&layer| map.columns.iter().map(move |&column| (layer, column)));
    let (rows, cells) = (map.cells.len(), || map.cells.iter().copied());
    let same = |text: &str| vec![text.to_owned(); rows];
    let mut columns = Columns::of_prompt(PATCHES, schema_of(&COLUMNS), &map.clean.id, rows);
    columns.texts(same(&map.corrupted.id));
    columns.ints(std::iter::repeat_n(number, rows))?;
    columns.texts(same(map.site.name()));
    columns.texts(same(map.direction.name()));
    columns.texts(same(map.metric.name()));
    for token in [&map.answer, &map.wrong] {
        columns.texts(same(&token.text));
        columns.token_ids(std::iter::repeat_n(token.id, rows));
    }
    let head_positions = is_head.then(|| ranges::text(&map.head_positions));
    columns.optional_texts(std::iter::repeat_n(head_positions, rows));
    columns.ints(places().map(|(layer, _)| layer))?;
    columns.optional_ints(places().map(|(_, column)| (!is_head).then_some(column)))?;
    columns.optional_ints(places().map(|(_, column)| is_head.then_some(column)))?;
    for prompt in [&map.clean, &map.corrupted] {
        let token = |column: usize| prompt.tokens.get(column).map(|token| token.text.clone());
        columns.optional_texts(places().map(|(_, column)| token(column).filter(|_| !is_head)));
    }
    columns.bools(cells().map(|cell| Some(cell.is_some())));
    columns.figures(cells().map(|cell| cell.map_or(f64::NAN, |cell| cell.logit_diff)));
    columns.figures(cells().map(|cell| cell.map_or(f64::NAN, |cell| cell.kl)));
    columns.figures(cells().map(|cell| cell.map_or(f64::NAN, |cell| map.effect(cell))));
    let prompts = [&map.clean, &map.corrupted];
    for next in prompts.map(|prompt| &prompt.next) {
        columns.texts(same(&next.text));
        columns.token_ids(std::iter::repeat_n(next.id, rows));
    }
    for figure in prompts.map(|prompt| prompt.figures.logit_diff) {
        columns.figures(std::iter::repeat_n(figure, rows));
    }
    for figure in prompts.map(|prompt| prompt.figures.kl) {
        columns.figures(std::iter::repeat_n(figure, rows));
    }
    columns.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_those_of_whole_maps() {
        assert_eq!(axes(&[1, 1, 4, 4], &[0, 2, 0, 2], [5, 3]), Some([vec![1, 4], vec![0, 2]]));
        for (layers, columns) in [
            ([1, 1, 4, 4], [0, 2, 0, 1]),
            ([1, 1, 1, 4], [0, 2, 0, 2]),
            ([4, 4, 1, 1], [0, 2, 0, 2]),
            ([1, 1, 5, 5], [0, 2, 0, 2]),
            ([1, 1, 4, 4], [0, 3, 0, 3]),
            ([1, 1, 1, 1], [0, 2, 0, 2]),
        ] {
            assert_eq!(axes(&layers, &columns, [5, 3]), None, "{layers:?} {columns:?}");
        }
        assert_eq!(axes(&[], &[], [5, 3]), None);
    }
}
