//! The comparison of two runs for the view.

use super::RunData;
use layerscope_cutoff::recommend::{Options, Recommendation};
use layerscope_engine::Result;
use layerscope_report::compare::{ComparedRun, Comparison, compare};

/// The comparison of two runs at a tolerance and an anchor.
#[derive(Debug, Clone)]
pub struct RunPair {
    /// The recommendations for the first and the second run.
    pub recommendations: [Recommendation; 2],
    /// The differences.
    pub comparison: Comparison,
}

impl RunPair {
    /// Compares two runs.
    ///
    /// # Errors
    /// As [`RunData::recommend`] for either run.
    pub fn new(first: &RunData, second: &RunData, options: Options) -> Result<Self> {
        let recommendations = [first.recommend(options)?, second.recommend(options)?];
        let [a, b] = &recommendations;
        let comparison = compare(first.compared(a), second.compared(b));
        Ok(Self { recommendations, comparison })
    }
}

impl RunData {
    fn compared<'a>(&'a self, recommendation: &'a Recommendation) -> ComparedRun<'a> {
        ComparedRun { evidence: self.evidence(), recommendation }
    }
}
