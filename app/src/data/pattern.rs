//! The attention pattern in tiles: which are in sight at which zoom, those that are computed, and the run's own record in their place.

use super::PromptMaps;
use crate::state::Window;
use layerscope_diagnostics::reads::{CellRange, recorded_cells};
use layerscope_engine::{PatternHeads, PatternTile, TileRequest, UNSEEN};
use layerscope_figures::Cells;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Rows and columns of cells of a tile.
pub const TILE: usize = 256;
/// Bytes of tiles that are kept.
const KEPT: usize = 384 << 20;
/// How many levels coarser a tile may be that stands in for one that is still computed.
const STAND_INS: u8 = 8;

/// A tile: a layer and heads, the logarithm of a cell's queries and keys, and which of the tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TileKey {
    /// The layer.
    pub layer: usize,
    /// The heads.
    pub heads: PatternHeads,
    /// Cells have 2 to the power of this many queries and keys.
    pub level: [u8; 2],
    /// Row and column of the tile among all of its level.
    pub place: [usize; 2],
}

impl TileKey {
    /// What the engine computes.
    pub fn request(&self) -> TileRequest {
        let side = |axis: usize| {
            let positions = TILE << self.level[axis];
            self.place[axis] * positions..(self.place[axis] + 1) * positions
        };
        let cell = self.level.map(|level| 1 << level);
        TileRequest { layer: self.layer, heads: self.heads, rows: side(0), keys: side(1), cell }
    }

    /// Whether all its keys come after its queries.
    fn is_unseen(&self) -> bool {
        let request = self.request();
        request.keys.start >= request.rows.end
    }
}

/// The tiles of one text under one policy.
#[derive(Debug, Clone, Default)]
pub struct Tiles {
    tiles: HashMap<TileKey, (Arc<PatternTile>, u64)>,
    bytes: usize,
    /// Rises with every tile that comes.
    version: u64,
}

impl Tiles {
    /// Rises with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether a tile is there.
    pub fn has(&self, key: &TileKey) -> bool {
        self.tiles.contains_key(key)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tiles.is_empty()
    }

    /// Keeps a tile; the oldest ones go where there is no room.
    pub fn put(&mut self, key: TileKey, tile: Arc<PatternTile>) {
        self.version += 1;
        self.bytes += tile.bytes();
        if let Some((before, _)) = self.tiles.insert(key, (tile, self.version)) {
            self.bytes -= before.bytes();
        }
        while self.bytes > KEPT && self.tiles.len() > 1 {
            let Some(oldest) = self.tiles.iter().min_by_key(|(_, (_, age))| *age).map(|(key, _)| *key) else {
                return;
            };
            if let Some((gone, _)) = self.tiles.remove(&oldest) {
                self.bytes -= gone.bytes();
            }
        }
    }
}

/// Which figure of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFigure {
    /// The largest probability.
    Max,
    /// The mean probability.
    Mean,
}

/// What is shown: a layer and heads, and a part of queries × keys at a resolution.
#[derive(Debug, Clone, PartialEq)]
pub struct Sight {
    /// The layer.
    pub layer: usize,
    /// The heads.
    pub heads: PatternHeads,
    /// Queries in sight.
    pub queries: Range<usize>,
    /// Keys in sight.
    pub keys: Range<usize>,
    /// Cells have 2 to the power of this many queries and keys.
    pub level: [u8; 2],
}

impl Sight {
    /// What is in sight of windows over queries and keys, in cells no smaller than a point of `points`.
    pub fn new(layer: usize, heads: PatternHeads, [queries, keys]: [Window; 2], points: [f32; 2]) -> Self {
        let range = |window: Window| window.start.floor().max(0.0) as usize..window.end.ceil() as usize;
        let level = |window: Window, points: f32| level(window.width(), f64::from(points));
        Self {
            layer,
            heads,
            queries: range(queries),
            keys: range(keys),
            level: [level(queries, points[0]), level(keys, points[1])],
        }
    }

    /// Tiles that cover it, those that are wholly blank left out, the ones in the middle first.
    pub fn tiles(&self) -> Vec<TileKey> {
        let places = |range: &Range<usize>, level: u8| {
            let side = TILE << level;
            range.start / side..range.end.div_ceil(side)
        };
        let (rows, columns) = (places(&self.queries, self.level[0]), places(&self.keys, self.level[1]));
        let middle = [rows.start + rows.end, columns.start + columns.end];
        let key = |place| TileKey { layer: self.layer, heads: self.heads, level: self.level, place };
        let mut tiles: Vec<TileKey> = rows
            .flat_map(|row| columns.clone().map(move |column| key([row, column])))
            .filter(|tile| !tile.is_unseen())
            .collect();
        tiles.sort_by_key(|tile| {
            let off = |axis: usize| (2 * tile.place[axis] + 1).abs_diff(middle[axis]);
            off(0) + off(1)
        });
        tiles
    }

    /// Its cells as far as tiles are there; coarser tiles stand in for those that are not, and NaN where there is none.
    pub fn cells(&self, tiles: &Tiles, figure: CellFigure) -> Cells {
        let size = self.level.map(|level| 1_usize << level);
        let first = [self.queries.start / size[0], self.keys.start / size[1]];
        let end = [self.queries.end.div_ceil(size[0]), self.keys.end.div_ceil(size[1])];
        let (rows, columns) = (end[0].saturating_sub(first[0]), end[1].saturating_sub(first[1]));
        let mut values = vec![f32::NAN; rows * columns];
        let places = |axis: usize| first[axis] / TILE..end[axis].div_ceil(TILE);
        for row_place in places(0) {
            for column_place in places(1) {
                let within = |place: usize, axis: usize| {
                    (place * TILE).max(first[axis])..((place + 1) * TILE).min(end[axis])
                };
                let (of_rows, of_columns) = (within(row_place, 0), within(column_place, 1));
                let key = TileKey {
                    layer: self.layer,
                    heads: self.heads,
                    level: self.level,
                    place: [row_place, column_place],
                };
                let found = (!key.is_unseen()).then(|| find(tiles, key));
                for row in of_rows {
                    let line = &mut values[(row - first[0]) * columns..][..columns];
                    for column in of_columns.clone() {
                        line[column - first[1]] = match &found {
                            None => UNSEEN,
                            Some(Some((tile, coarser, place))) => {
                                let at = [(row >> coarser[0]), (column >> coarser[1])];
                                value(tile, [at[0] - place[0] * TILE, at[1] - place[1] * TILE], figure)
                            }
                            Some(None) if (column * size[1]) >= (row + 1) * size[0] => UNSEEN,
                            Some(None) => f32::NAN,
                        };
                    }
                }
            }
        }
        Cells { first: [first[0] * size[0], first[1] * size[1]], cell: size, columns, values }
    }

    /// The cells that the run's own record has, of the generated rows: the strongest positions of the prompt, 0 for weaker ones, and
    /// NaN for what is not recorded.
    pub fn recorded(&self, maps: &PromptMaps, prompt_len: usize) -> Option<Cells> {
        let reads = maps.reads().filter(|reads| self.layer < reads.nrows())?;
        let cell = self.level.map(|level| 1_usize << level);
        let whole = |range: &Range<usize>, size: usize| range.start / size..range.end.div_ceil(size);
        let (rows, columns) = (whole(&self.queries, cell[0]), whole(&self.keys, cell[1]));
        let first = [rows.start * cell[0], columns.start * cell[1]];
        let masses = maps.steps(super::StepFigure::BosMass);
        let bos = |step: usize| masses.value(self.layer, step);
        // Of single heads it is not recorded by step.
        let bos: Option<&dyn Fn(usize) -> f32> =
            if self.heads == PatternHeads::Mean { Some(&bos) } else { None };
        let count = columns.len();
        let range = CellRange { rows, columns, cell };
        let values = recorded_cells(reads.row(self.layer), self.heads, prompt_len, &range, bos);
        Some(Cells { first, cell, columns: count, values })
    }
}

/// The least level at which `positions` have no more cells than `points`.
fn level(positions: f64, points: f64) -> u8 {
    let mut level = 0;
    while positions / f64::from(1_u32 << level) > points.max(1.0) && level < 24 {
        level += 1;
    }
    level
}

/// A tile or a coarser one that covers it, by how many levels that is coarser, and its place.
fn find(tiles: &Tiles, key: TileKey) -> Option<(&PatternTile, [u8; 2], [usize; 2])> {
    for coarser in 0..=STAND_INS {
        let key = TileKey {
            level: key.level.map(|level| level + coarser),
            place: key.place.map(|place| place >> coarser),
            ..key
        };
        if let Some((tile, _)) = tiles.tiles.get(&key) {
            return Some((tile, [coarser; 2], key.place));
        }
    }
    None
}

fn value(tile: &PatternTile, [row, column]: [usize; 2], figure: CellFigure) -> f32 {
    if column >= tile.columns || row >= tile.rows {
        return UNSEEN;
    }
    let values = match figure {
        CellFigure::Max => &tile.max,
        CellFigure::Mean => &tile.mean,
    };
    values[row * tile.columns + column]
}

/// Tiles that are wanted and neither there nor asked for.
pub fn lacking(wanted: &[TileKey], tiles: &Tiles, asked: &HashSet<TileKey>) -> Vec<TileKey> {
    wanted.iter().filter(|key| !tiles.has(key) && !asked.contains(key)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start: f64, end: f64) -> Window {
        Window { start, end }
    }

    /// A tile of which each cell says where it is.
    fn tile(key: &TileKey) -> Arc<PatternTile> {
        let request = key.request();
        let at = |index: usize| {
            let (row, column) = (index / TILE, index % TILE);
            (request.rows.start + row * request.cell[0]) as f32 * 1e4
                + (request.keys.start + column * request.cell[1]) as f32
        };
        let values: Vec<f32> = (0..TILE * TILE).map(at).collect();
        Arc::new(PatternTile { rows: TILE, columns: TILE, mean: values.clone(), max: values })
    }

    #[test]
    fn cells_are_no_smaller_than_a_point() {
        assert_eq!([100.0, 101.0, 131_072.0, 3.0].map(|positions| level(positions, 100.0)), [0, 1, 11, 0]);
    }

    #[test]
    fn tiles_cover_the_sight_and_blank_ones_are_left_out() {
        let sight = Sight::new(3, PatternHeads::Mean, [window(0.0, 1_000.0); 2], [500.0; 2]);
        assert_eq!(sight.level, [1, 1]);
        let mut places: Vec<[usize; 2]> = sight.tiles().iter().map(|tile| tile.place).collect();
        places.sort_unstable();
        assert_eq!(places, [[0, 0], [1, 0], [1, 1]]);
        let zoomed =
            Sight::new(3, PatternHeads::Mean, [window(700.0, 760.0), window(10.5, 50.0)], [500.0; 2]);
        assert_eq!((zoomed.level, zoomed.tiles().len()), ([0, 0], 1));
        assert_eq!(zoomed.tiles()[0].request().rows, 512..768);
    }

    #[test]
    fn cells_come_from_tiles_and_coarser_ones_stand_in() {
        let sight =
            Sight::new(0, PatternHeads::One(2), [window(600.0, 700.0), window(240.0, 300.0)], [200.0; 2]);
        assert_eq!(sight.level, [0, 0]);
        let mut tiles = Tiles::default();
        assert!(sight.cells(&tiles, CellFigure::Max).values.iter().all(|value| value.is_nan()));
        let coarse = TileKey { layer: 0, heads: PatternHeads::One(2), level: [2, 2], place: [0, 0] };
        tiles.put(coarse, tile(&coarse));
        let cells = sight.cells(&tiles, CellFigure::Max);
        assert_eq!((cells.first, cells.cell, cells.rows(), cells.columns), ([600, 240], [1, 1], 100, 60));
        assert_eq!(cells.at(601, 251), 600.0 * 1e4 + 248.0);
        for key in sight.tiles() {
            tiles.put(key, tile(&key));
        }
        let cells = sight.cells(&tiles, CellFigure::Mean);
        assert_eq!(cells.at(601, 251), 601.0 * 1e4 + 251.0);
        assert_eq!(tiles.version(), 3);
    }

    #[test]
    fn what_comes_after_is_blank_before_anything_is_computed() {
        let sight = Sight::new(0, PatternHeads::Max, [window(0.0, 300.0); 2], [300.0; 2]);
        let cells = sight.cells(&Tiles::default(), CellFigure::Max);
        assert_eq!((cells.at(0, 299), cells.at(10, 11)), (UNSEEN, UNSEEN));
        assert!(cells.at(10, 10).is_nan() && cells.at(299, 0).is_nan());
    }

    #[test]
    fn old_tiles_make_room() {
        let mut tiles = Tiles::default();
        let key =
            |place: usize| TileKey { layer: 0, heads: PatternHeads::Max, level: [0, 0], place: [place, 0] };
        for place in 0..KEPT / (TILE * TILE * 8) + 3 {
            tiles.put(key(place), tile(&key(place)));
        }
        assert!(!tiles.has(&key(2)) && tiles.has(&key(3)) && tiles.bytes <= KEPT);
    }
}
