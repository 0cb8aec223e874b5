//! Two runs against each other, ready to be drawn.

use super::RunData;
use layerscope_cutoff::compare::{Comparison, Side, compare};
use layerscope_cutoff::recommend::{Options, Recommendation};
use layerscope_engine::Result;

/// What comes of comparing two runs at a tolerance and an anchor.
#[derive(Debug, Clone)]
pub struct RunComparison {
    /// What is recommended for the first and for the second.
    pub recommendations: [Recommendation; 2],
    /// How they differ.
    pub comparison: Comparison,
}

impl RunComparison {
    /// Compares two runs.
    ///
    /// # Errors
    /// As [`compare`].
    pub fn new(first: &RunData, second: &RunData, options: Options) -> Result<Self> {
        let Options { tolerance, anchor } = options;
        let comparison = compare(first.side(), second.side(), options)?;
        let recommendations = [first.recommend(tolerance, anchor)?, second.recommend(tolerance, anchor)?];
        Ok(Self { recommendations, comparison })
    }
}

impl RunData {
    fn side(&self) -> Side<'_> {
        Side { prompts: &self.prompts, evidence: &self.evidence }
    }
}
