//! A prompt's maps: whole, or of a run on another machine, of which parts come as views need them.

use super::figure::{StepFigure, TokenFigure};
use layerscope_diagnostics::reads::{Read, RowReads};
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use layerscope_figures::{Pyramid, PyramidPart, PyramidTop};
use ndarray::Array2;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;

/// Most groups of columns of a map that come at once with all others.
const TOP: usize = 64;

/// One of a prompt's maps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MapKey {
    /// Layer × prompt token.
    Tokens(TokenFigure),
    /// Layer × decode step.
    Steps(StepFigure),
    /// Layer × decode step under the policy of this name.
    Under(String, StepFigure),
}

/// What a view needs of maps and what is not there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Want {
    /// Part of a map.
    Part(MapKey, PyramidPart),
    /// What every prompt token receives over these layers.
    OverLayers(TokenFigure, Vec<usize>),
    /// What each decode step reads most at a layer.
    Reads(usize),
}

/// The answer to a [`Want`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MapPart {
    /// Numbers of a map.
    Values(Vec<f32>),
    /// What each decode step reads, by step.
    Reads(Vec<RowReads>),
}

/// The upper levels of all maps of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MapTops {
    tokens: Vec<PyramidTop>,
    steps: Vec<PyramidTop>,
    under: Vec<(String, Vec<PyramidTop>)>,
    has_reads: bool,
}

/// A prompt's layer × token and layer × step maps.
#[derive(Debug, Clone)]
pub struct PromptMaps {
    /// Index of the prompt in the run.
    pub prompt: usize,
    /// In the order of [`TokenFigure::ALL`].
    tokens: Vec<Pyramid>,
    /// In the order of [`StepFigure::ALL`].
    steps: Vec<Pyramid>,
    /// The same under policies, by name, but for the logit lens.
    under: Vec<(String, Vec<Pyramid>)>,
    reads: Reads,
    /// What tokens receive over layers that were asked for.
    over_layers: Vec<(TokenFigure, Vec<usize>, Vec<f32>)>,
}

/// The strongest reads of each step.
#[derive(Debug, Clone)]
enum Reads {
    /// The run was recorded before they were kept.
    None,
    /// By layer, as they come.
    Coming(Vec<Option<Vec<RowReads>>>),
    There(Array2<RowReads>),
}

/// Answers over layers that are kept of a prompt.
const KEPT_OVER_LAYERS: usize = 16;

impl PromptMaps {
    /// Reads the maps of the prompt at an index of the run.
    ///
    /// # Errors
    /// As [`Run::tokens`]; the folder is reopened, because it may have changed.
    pub fn read(folder: &Path, prompt: usize, id: &str) -> Result<Self> {
        let run = Run::open(folder)?;
        let steps = run.steps(id)?;
        let lens_kl = steps.lens.kl.mapv(f64::from);
        let step_map = |figure: StepFigure| pyramid_f64(figure.of(&steps.attention).unwrap_or(&lens_kl));
        let steps = StepFigure::ALL.into_iter().map(step_map).collect();
        let under = run.policies_of(id)?.into_iter().map(|record| {
            let of_figure = |figure: StepFigure| figure.of(&record.attention).map(pyramid_f64);
            (record.policy.clone(), StepFigure::ALL.into_iter().filter_map(of_figure).collect())
        });
        let under = under.collect();
        let reads = run.reads(id)?.map_or(Reads::None, Reads::There);
        let received = run.tokens(id)?.undefined_beyond_windows(&run.manifest().model);
        // One at a time, so that only one figure's values are in memory twice.
        let (mean, max) = (received.mean, received.max);
        let received_mean = Pyramid::from_array(&mean);
        drop(mean);
        let tokens = vec![received_mean, Pyramid::from_array(&max)];
        Ok(Self { prompt, tokens, steps, under, reads, over_layers: vec![] })
    }

    /// Maps without columns, for a prompt whose maps cannot be read.
    pub fn empty(prompt: usize) -> Self {
        let nothing = |count: usize| (0..count).map(|_| Pyramid::new(1)).collect();
        let (tokens, steps) = (nothing(TokenFigure::ALL.len()), nothing(StepFigure::ALL.len()));
        Self { prompt, tokens, steps, under: vec![], reads: Reads::None, over_layers: vec![] }
    }

    /// The upper levels of all, of maps that are whole.
    pub fn tops(&self) -> MapTops {
        let tops = |maps: &[Pyramid]| maps.iter().map(|map| map.top(TOP)).collect();
        MapTops {
            tokens: tops(&self.tokens),
            steps: tops(&self.steps),
            under: self.under.iter().map(|(name, maps)| (name.clone(), tops(maps))).collect(),
            has_reads: !matches!(self.reads, Reads::None),
        }
    }

    /// Maps of which so far the upper levels are there; `None` if they contradict themselves or each other.
    pub fn from_tops(prompt: usize, tops: MapTops) -> Option<Self> {
        let maps =
            |tops: Vec<PyramidTop>| tops.into_iter().map(Pyramid::from_top).collect::<Option<Vec<_>>>();
        let (tokens, steps) = (maps(tops.tokens)?, maps(tops.steps)?);
        let under = tops.under.into_iter().map(|(name, tops)| Some((name, maps(tops)?)));
        let under: Vec<(String, Vec<Pyramid>)> = under.collect::<Option<_>>()?;
        let of_steps = StepFigure::ALL.len();
        let is_sound = tokens.len() == TokenFigure::ALL.len()
            && steps.len() == of_steps
            && under.iter().all(|(_, maps)| maps.len() + 1 == of_steps);
        let reads = match tops.has_reads {
            true => Reads::Coming(vec![None; steps.first()?.rows()]),
            false => Reads::None,
        };
        is_sound.then_some(Self { prompt, tokens, steps, under, reads, over_layers: vec![] })
    }

    /// Part of maps that are whole; `None` where there is no such part.
    pub fn part(&self, want: &Want) -> Option<MapPart> {
        match (want, &self.reads) {
            (Want::Part(key, part), _) => self.map(key)?.part(*part).map(MapPart::Values),
            (Want::OverLayers(figure, layers), _) => {
                Some(MapPart::Values(self.over_layers(*figure, layers)?.into_owned()))
            }
            (Want::Reads(layer), Reads::There(reads)) if *layer < reads.nrows() => {
                Some(MapPart::Reads(reads.row(*layer).to_vec()))
            }
            (Want::Reads(_), _) => None,
        }
    }

    /// Takes a part that has come; returns whether it is one of these maps.
    pub fn put(&mut self, want: Want, part: MapPart) -> bool {
        match (want, part) {
            (Want::Part(key, part), MapPart::Values(values)) => {
                self.map_mut(&key).is_some_and(|map| map.put(part, values))
            }
            (Want::OverLayers(figure, layers), MapPart::Values(values)) => {
                let is_sound = values.len() == self.tokens(figure).columns();
                if is_sound {
                    self.over_layers.push((figure, layers, values));
                    let superfluous = self.over_layers.len().saturating_sub(KEPT_OVER_LAYERS);
                    self.over_layers.drain(..superfluous);
                }
                is_sound
            }
            (Want::Reads(layer), MapPart::Reads(rows)) => self.put_reads(layer, rows),
            _ => false,
        }
    }

    fn put_reads(&mut self, layer: usize, rows: Vec<RowReads>) -> bool {
        let positions = self.tokens[0].columns();
        let steps = self.steps[0].columns();
        let Reads::Coming(layers) = &mut self.reads else { return false };
        let is_sound = |row: &RowReads| {
            let within = |read: &Read| (read.position as usize) < positions;
            row.mean.iter().chain(&row.heads).all(within)
                && row.ends.is_sorted()
                && row.ends.last().is_none_or(|end| *end <= row.heads.len())
        };
        let Some(place) = layers.get_mut(layer).filter(|_| rows.len() == steps && rows.iter().all(is_sound))
        else {
            return false;
        };
        *place = Some(rows);
        if layers.iter().all(Option::is_some) {
            let shape = (layers.len(), steps);
            let rows = std::mem::take(layers).into_iter().flatten().flatten().collect();
            self.reads = Array2::from_shape_vec(shape, rows).map_or(Reads::None, Reads::There);
        }
        true
    }

    /// The prompt positions that each decode step reads most, `[L, N]`; `None` where the run was recorded before they were kept, and
    /// until all have come.
    pub fn reads(&self) -> Option<&Array2<RowReads>> {
        match &self.reads {
            Reads::There(reads) => Some(reads),
            Reads::None | Reads::Coming(_) => None,
        }
    }

    /// The reads that have not come yet.
    pub fn lacking_reads(&self) -> Vec<Want> {
        match &self.reads {
            Reads::Coming(layers) => {
                let lacking = layers.iter().enumerate().filter(|(_, rows)| rows.is_none());
                lacking.map(|(layer, _)| Want::Reads(layer)).collect()
            }
            Reads::None | Reads::There(_) => vec![],
        }
    }

    /// A map; `None` where the prompt was not recorded under the policy, or the figure was not.
    pub fn map(&self, key: &MapKey) -> Option<&Pyramid> {
        match key {
            MapKey::Tokens(figure) => Some(self.tokens(*figure)),
            MapKey::Steps(figure) => Some(self.steps(*figure)),
            MapKey::Under(policy, figure) => {
                let (_, figures) = self.under.iter().find(|(name, _)| name == policy)?;
                figures.get(place(*figure))
            }
        }
    }

    fn map_mut(&mut self, key: &MapKey) -> Option<&mut Pyramid> {
        match key {
            MapKey::Tokens(figure) => self.tokens.get_mut(token_place(*figure)),
            MapKey::Steps(figure) => self.steps.get_mut(place(*figure)),
            MapKey::Under(policy, figure) => {
                let (_, figures) = self.under.iter_mut().find(|(name, _)| name == policy)?;
                figures.get_mut(place(*figure))
            }
        }
    }

    /// Layer × prompt token.
    pub fn tokens(&self, figure: TokenFigure) -> &Pyramid {
        &self.tokens[token_place(figure)]
    }

    /// Layer × decode step.
    pub fn steps(&self, figure: StepFigure) -> &Pyramid {
        &self.steps[place(figure)]
    }

    /// The map of a step figure under a policy; of the full model where the prompt was not recorded under it, or the figure was not.
    pub fn steps_under(&self, figure: StepFigure, policy: Option<&str>) -> MapKey {
        let under = policy.map(|policy| MapKey::Under(policy.to_owned(), figure));
        under.filter(|key| self.map(key).is_some()).unwrap_or(MapKey::Steps(figure))
    }

    /// The policies under which the prompt was recorded.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.under.iter().map(|(name, _)| name.as_str())
    }

    /// What every prompt token receives over some layers: the mean, or of maxima the maximum; `None` where that is yet to come.
    pub fn over_layers(&self, figure: TokenFigure, layers: &[usize]) -> Option<Cow<'_, [f32]>> {
        let pyramid = self.tokens(figure);
        if !pyramid.is_whole() {
            let known =
                self.over_layers.iter().find(|(of, over, _)| (*of, over.as_slice()) == (figure, layers));
            return known.map(|(_, _, values)| Cow::Borrowed(values.as_slice()));
        }
        let known: Vec<usize> = layers.iter().copied().filter(|layer| *layer < pyramid.rows()).collect();
        let of = |column: usize| {
            let values = pyramid.column(column);
            let values = known.iter().map(|layer| values[*layer]);
            match figure {
                TokenFigure::ReceivedMax => values.fold(f32::NAN, f32::max),
                TokenFigure::ReceivedMean => values.sum::<f32>() / known.len() as f32,
            }
        };
        Some(Cow::Owned((0..pyramid.columns()).map(of).collect()))
    }

    /// Whether [`Self::over_layers`] is there.
    pub fn over_layers_is_there(&self, figure: TokenFigure, layers: &[usize]) -> bool {
        let is_it =
            |(of, over, _): &(TokenFigure, Vec<usize>, Vec<f32>)| (*of, over.as_slice()) == (figure, layers);
        self.tokens(figure).is_whole() || self.over_layers.iter().any(is_it)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let under = self.under.iter().flat_map(|(_, figures)| figures);
        let all = self.tokens.iter().chain(&self.steps).chain(under);
        let of_row = |row: &RowReads| {
            let listed = (row.mean.len() + row.heads.len()) * size_of::<Read>();
            size_of::<RowReads>() + listed + row.ends.len() * size_of::<usize>()
        };
        let reads: usize = match &self.reads {
            Reads::None => 0,
            Reads::Coming(layers) => layers.iter().flatten().flatten().map(of_row).sum(),
            Reads::There(reads) => reads.iter().map(of_row).sum(),
        };
        let over_layers: usize = self.over_layers.iter().map(|(_, _, values)| values.len() * 4).sum();
        all.map(Pyramid::bytes).sum::<usize>() + reads + over_layers
    }
}

fn token_place(figure: TokenFigure) -> usize {
    TokenFigure::ALL.iter().position(|known| *known == figure).unwrap_or(0)
}

fn place(figure: StepFigure) -> usize {
    StepFigure::ALL.iter().position(|known| *known == figure).unwrap_or(0)
}

fn pyramid_f64(values: &Array2<f64>) -> Pyramid {
    Pyramid::from_array(&values.mapv(|value| value as f32))
}
