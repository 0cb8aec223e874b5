//! Patched copies of the base's rows, through the layers above the patch.

use super::measure::Measure;
use super::question::{Plan, cells_at_once};
use super::runs::{Runs, hooked};
use super::{PatchDirection, PatchEvent, PatchQuestion, PatchSite};
use crate::copies::{CopiedRows, RowCopy};
use layerscope_diagnostics::patching::PatchFigures;
use layerscope_engine::{
    ComputeType, Decoder, Depth, Error, HookPoint, Hooks, Interrupt, KeyRange, Result, Site, Tensor,
    check_interrupt, with_f32,
};
use ndarray::s;

/// The rows of one cell.
#[derive(Clone, Copy)]
struct Patched {
    /// The cell's place in the map.
    cell: usize,
    /// Position of the first row.
    first: usize,
}

impl RowCopy for Patched {
    fn sees(&self, _: usize, keys: &KeyRange) -> Vec<KeyRange> {
        keys.of_positions(0..self.first).into_iter().collect()
    }
}

/// Rows `[rows, d]` of a cell that wait at the entrance of a layer.
struct Waiting {
    entrance: usize,
    patched: Patched,
    x: Tensor,
}

/// The patched reruns of a map.
pub(super) struct Rerun<'a> {
    decoder: &'a Decoder,
    site: PatchSite,
    plan: &'a Plan,
    runs: &'a Runs,
    measure: &'a Measure,
    /// Figures of the base, without a patch.
    base: PatchFigures,
    first_decode: usize,
    cells: &'a mut [Option<PatchFigures>],
    /// Rows, once for each layer, that ran and that will have run.
    work: [usize; 2],
}

impl<'a> Rerun<'a> {
    pub(super) fn new(
        decoder: &'a Decoder,
        question: &PatchQuestion<'_>,
        plan: &'a Plan,
        runs: &'a Runs,
        measure: &'a Measure,
        cells: &'a mut [Option<PatchFigures>],
    ) -> Self {
        let [clean, corrupted] = measure.unpatched();
        let base = match question.direction {
            PatchDirection::Denoising => corrupted,
            PatchDirection::Noising => clean,
        };
        // Without an adapter no row differs from others, and each is multiplied as its neighbours are.
        let first_decode = if decoder.has_adapter() { plan.len - 1 } else { usize::MAX };
        Self { decoder, site: question.site, plan, runs, measure, base, first_decode, cells, work: [0; 2] }
    }

    /// Every cell of the map.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or whatever fails beneath.
    pub(super) fn all(&mut self, interrupt: &Interrupt, observe: &mut dyn FnMut(PatchEvent)) -> Result<()> {
        match self.site {
            PatchSite::Head => self.heads(interrupt, observe),
            _ => self.positions(interrupt, observe),
        }
    }

    /// Cells of layers × positions, from the last position, whose cells take least, to the first.
    fn positions(&mut self, interrupt: &Interrupt, observe: &mut dyn FnMut(PatchEvent)) -> Result<()> {
        let mut rows = vec![];
        for &layer in &self.plan.layers {
            check_interrupt(interrupt)?;
            rows.push(self.patched_rows(layer)?);
        }
        let changed = rows.iter().zip(&self.plan.layers).map(|(rows, &layer)| self.changed(rows, layer));
        let changed = changed.collect::<Result<Vec<_>>>()?;
        let columns = self.plan.columns.clone();
        let to_run: Vec<Vec<usize>> = columns
            .iter()
            .map(|&position| {
                (0..rows.len()).filter(|&row| self.is_felt(&changed[row], row, position)).collect()
            })
            .collect();
        let work = |(position, to_run): (&usize, &Vec<usize>)| {
            let layers = to_run.iter().map(|&row| self.plan.depth - self.entrance(row)).sum::<usize>();
            (self.plan.len - position) * layers
        };
        self.work[1] = columns.iter().zip(&to_run).map(work).sum();

        for (column, &position) in columns.iter().enumerate().rev() {
            let cell = |row: usize| row * columns.len() + column;
            for row in (0..rows.len()).filter(|row| !to_run[column].contains(row)) {
                self.cells[cell(row)] = Some(self.base);
            }
            let at_once = cells_at_once(self.decoder, self.plan.len - position);
            for batch in to_run[column].chunks(at_once) {
                let waiting = batch.iter().map(|&row| {
                    let patched = Patched { cell: cell(row), first: position };
                    let x = self.with_base_rows(&rows[row], row, position)?;
                    Ok(Waiting { entrance: self.entrance(row), patched, x })
                });
                let waiting = waiting.collect::<Result<Vec<_>>>()?;
                self.measured(position, waiting, interrupt, observe)?;
            }
        }
        Ok(())
    }

    /// Cells of layers × heads, from the last layer, whose cells take least, to the first.
    fn heads(&mut self, interrupt: &Interrupt, observe: &mut dyn FnMut(PatchEvent)) -> Result<()> {
        let plan = self.plan;
        let (first, last) = (plan.from, plan.len - 1);
        let replaced: Vec<usize> =
            plan.head_positions.iter().filter_map(|position| position.checked_sub(first)).collect();
        // Behind the last attention no row reads another.
        let is_felt = |layer: usize| match layer + 1 == plan.depth {
            true => plan.head_positions.contains(&last),
            false => !replaced.is_empty(),
        };
        let heads = plan.columns.len();
        let felt = plan.layers.iter().filter(|&&layer| is_felt(layer));
        self.work[1] = felt.map(|layer| plan.kept() * heads * (plan.depth - layer)).sum();

        for (row, &layer) in plan.layers.iter().enumerate().rev() {
            if !is_felt(layer) {
                self.cells[row * heads..][..heads].fill(Some(self.base));
                continue;
            }
            let copies: Vec<Patched> =
                (0..heads).map(|head| Patched { cell: row * heads + head, first }).collect();
            for batch in copies.chunks(cells_at_once(self.decoder, plan.kept())) {
                check_interrupt(interrupt)?;
                let waiting = self.with_heads(batch, layer, &replaced)?;
                self.progress(batch.len() * plan.kept(), observe);
                self.measured(first, waiting, interrupt, observe)?;
            }
        }
        Ok(())
    }

    /// Copies of the base's rows through a layer, in each of which one head has the source's output at some rows.
    fn with_heads(&self, copies: &[Patched], layer: usize, replaced: &[usize]) -> Result<Vec<Waiting>> {
        let (rows, heads) = (self.plan.kept(), self.plan.columns.len());
        let (source, base) = (self.source(layer)?.to_array()?, self.stream(layer)?);
        let copies = copies.iter().map(|&patched| (patched, base.clone())).collect();
        let copied = self.copied(self.plan.from);
        let through = |copies: &[Patched], x: Tensor| {
            let mut hooks = Hooks::none();
            hooks.add(HookPoint { layer, site: Site::WeightedValues }, |_, z| {
                let mut z = z.to_owned();
                for (copy, patched) in copies.iter().enumerate() {
                    let head = patched.cell % heads;
                    for &row in replaced {
                        let of_source = source.slice(s![row, head, ..]);
                        z.slice_mut(s![copy * rows + row, head, ..]).assign(&of_source);
                    }
                }
                Ok(Some(z))
            });
            copied.through(copies, x, Depth::of_layers(layer..layer + 1), &mut hooks)
        };
        let after = copied.in_groups(copies, through)?.into_iter();
        Ok(after.map(|(patched, x)| Waiting { entrance: layer + 1, patched, x }).collect())
    }

    /// The rows `[rows, d]` of every position, each patched, where they go on: at the entrance of the layer or of the next.
    fn patched_rows(&self, layer: usize) -> Result<Tensor> {
        let source = self.source(layer)?;
        if self.site == PatchSite::ResidPre {
            return Ok(source.clone());
        }
        // No row reads another's output of attention or MLP within the layer, so all are replaced in one pass.
        let source = source.to_array()?;
        let mut hooks = Hooks::none();
        hooks.add(HookPoint { layer, site: hooked(self.site) }, |_, _| Ok(Some(source.clone())));
        let first = self.plan.from;
        let copies = [Patched { cell: 0, first }];
        let depth = Depth::of_layers(layer..layer + 1);
        self.copied(first).through(&copies, self.stream(layer)?.clone(), depth, &mut hooks)
    }

    /// Of each position, whether its patched row has other bits than the base's.
    fn changed(&self, patched: &Tensor, layer: usize) -> Result<Vec<bool>> {
        let base = self.stream(Plan::entrance(self.site, layer))?;
        let width = self.decoder.config().hidden;
        let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        let (patched, base) = (with_f32(patched, bits)?, with_f32(base, bits)?);
        Ok(patched.chunks(width).zip(base.chunks(width)).map(|(patched, base)| patched != base).collect())
    }

    /// Whether the last row feels a patch.
    fn is_felt(&self, changed: &[bool], row: usize, position: usize) -> bool {
        // Behind the last layer no row reads another.
        let is_read = self.entrance(row) < self.plan.depth || position + 1 == self.plan.len;
        position.checked_sub(self.plan.from).is_some_and(|at| changed[at]) && is_read
    }

    /// The patched row at a position and the base's rows behind it.
    fn with_base_rows(&self, patched: &Tensor, row: usize, position: usize) -> Result<Tensor> {
        let (at, rows) = (position - self.plan.from, self.plan.len - position);
        let patched = patched.narrow(at, 1)?;
        if rows == 1 {
            return Ok(patched);
        }
        let behind = self.stream(self.entrance(row))?.narrow(at + 1, rows - 1)?;
        Tensor::cat(&[&patched, &behind])
    }

    /// Takes cells whose rows begin at a position through all layers above and keeps their figures. Entrances ascend.
    fn measured(
        &mut self,
        first: usize,
        waiting: Vec<Waiting>,
        interrupt: &Interrupt,
        observe: &mut dyn FnMut(PatchEvent),
    ) -> Result<()> {
        let (copied, depth) = (self.copied(first), self.plan.depth);
        let mut waiting = waiting.into_iter().peekable();
        let lowest = waiting.peek().map_or(depth, |next| next.entrance);
        let mut copies: Vec<(Patched, Tensor)> = vec![];
        for layer in lowest..depth {
            check_interrupt(interrupt)?;
            while let Some(next) = waiting.next_if(|next| next.entrance == layer) {
                copies.push((next.patched, next.x));
            }
            copies = match layer + 1 == depth {
                false => copied.through_layer(copies, layer)?,
                true => last_rows_through(copied, copies, layer)?,
            };
            self.progress(copies.len() * copied.rows, observe);
        }
        // A patch behind the last layer is its last row.
        for next in waiting {
            copies.push((next.patched, next.x.narrow(copied.rows - 1, 1)?));
        }
        let (patched, x): (Vec<Patched>, Vec<Tensor>) = copies.into_iter().unzip();
        let figures = self.measure.of_streams(self.decoder, &Tensor::cat(&x.iter().collect::<Vec<_>>())?)?;
        for (patched, figures) in patched.iter().zip(figures) {
            self.cells[patched.cell] = Some(figures);
        }
        Ok(())
    }

    fn copied(&self, first: usize) -> CopiedRows<'a> {
        CopiedRows {
            decoder: self.decoder,
            store: self.runs.base.store(),
            prompt_len: self.plan.len,
            sequence_len: self.runs.base.sequence_len(),
            first,
            rows: self.plan.len - first,
            first_decode: self.first_decode,
            // As the prompts ran.
            compute: ComputeType::Bf16,
        }
    }

    fn entrance(&self, row: usize) -> usize {
        Plan::entrance(self.site, self.plan.layers[row])
    }

    fn stream(&self, entrance: usize) -> Result<&'a Tensor> {
        let kept = self.runs.streams.get(entrance).and_then(Option::as_ref);
        kept.ok_or_else(|| Error::failure("a run kept no residual stream; please report this"))
    }

    fn source(&self, layer: usize) -> Result<&'a Tensor> {
        let kept = self.runs.sources.get(layer).and_then(Option::as_ref);
        kept.ok_or_else(|| {
            Error::input(format!(
                "the model does not show {} at layer {layer}; patch another activation",
                self.site.name()
            ))
        })
    }

    fn progress(&mut self, rows: usize, observe: &mut dyn FnMut(PatchEvent)) {
        self.work[0] += rows;
        observe(PatchEvent::Rows { done: self.work[0], all: self.work[1] });
    }
}

/// The last row of each copy, `[1, d]`, through the last layer. The other rows end with its attention, which is all that reads them.
fn last_rows_through(
    copied: CopiedRows<'_>,
    copies: Vec<(Patched, Tensor)>,
    layer: usize,
) -> Result<Vec<(Patched, Tensor)>> {
    let halves = [Depth::entering(layer), Depth::after_attention(layer), Depth::entering(layer + 1)];
    let one_row = CopiedRows { first: copied.first + copied.rows - 1, rows: 1, ..copied };
    copied.in_groups(copies, |patched, x| {
        let x = copied.through(patched, x, halves[0]..halves[1], &mut Hooks::none())?;
        let last: Vec<u32> = (1..=patched.len()).map(|copy| (copy * copied.rows - 1) as u32).collect();
        one_row.through(patched, x.select(&last)?, halves[1]..halves[2], &mut Hooks::none())
    })
}
