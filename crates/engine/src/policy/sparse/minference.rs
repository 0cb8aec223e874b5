//! `minference`: in the prefill each head reads a pattern, by default vertical and slash lines of fixed budgets (MInference, Jiang
//! et al. 2024, arXiv 2407.02490).

use super::head_patterns::HeadPatterns;
use super::pattern::{Estimates, HeadPattern};
use crate::policy::registry::Argument;
use crate::policy::schedule::{parse_tokens, shown_tokens};
use crate::policy::{PolicyKind, PolicyRules, PrefillPattern, PromptChunk};
use crate::{ModelConfig, Result};
use layerscope_kernels::SparseKeys;
use rayon::prelude::*;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Lines that the method's published configurations give most heads of Llama-3-8B, and its code those that a configuration lacks.
const VERTICAL: usize = 1_000;
const SLASH: usize = 6_096;

/// Patterns of a file, and lines for heads that it lacks.
pub(in crate::policy) struct MInference {
    vertical: usize,
    slash: usize,
    file: Option<(String, HeadPatterns)>,
}

pub(in crate::policy) const KIND: PolicyKind = PolicyKind {
    name: "minference",
    syntax: "minference[:vertical=N][+slash=N][+heads=FILE]",
    description: "In the prefill, each head reads the N keys (1000) and the N distances (6096) that the last 64 rows read \
                  most, or its pattern in FILE, which `layerscope patterns` writes; all KV is stored, and decode reads all",
    standard_name: Some("minference"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let mut policy = MInference { vertical: VERTICAL, slash: SLASH, file: None };
    for item in argument.items() {
        let tokens = |text: &str| parse_tokens(text).ok_or_else(|| argument.malformed());
        match item.split_once('=') {
            Some(("vertical", text)) => policy.vertical = tokens(text)?,
            Some(("slash", text)) => policy.slash = tokens(text)?,
            Some(("heads", file)) => {
                policy.file = Some((file.to_owned(), HeadPatterns::read(Path::new(file))?));
            }
            _ => return Err(argument.malformed()),
        }
    }
    Ok(Arc::new(policy))
}

impl MInference {
    fn pattern(&self, layer: usize, head: usize) -> HeadPattern {
        let own = self.file.as_ref().and_then(|(_, patterns)| patterns.of(layer, head));
        own.unwrap_or(HeadPattern::VerticalSlash { vertical: self.vertical, slash: self.slash })
    }
}

impl PrefillPattern for MInference {
    fn sparse_keys(&self, chunk: &PromptChunk<'_>) -> Option<SparseKeys> {
        let heads = chunk.shape.query_heads;
        let patterns: Vec<HeadPattern> = (0..heads).map(|head| self.pattern(chunk.layer, head)).collect();
        if patterns.iter().all(|pattern| pattern.is_dense(chunk)) {
            return None;
        }
        let of_head = |(head, pattern): (usize, HeadPattern)| pattern.sets(&Estimates::new(chunk, head));
        let sets: Vec<_> = patterns.into_par_iter().enumerate().flat_map_iter(of_head).collect();
        Some(SparseKeys::new(chunk.first_position, chunk.rows, heads, sets))
    }
}

impl PolicyRules for MInference {
    fn prefill_pattern(&self) -> Option<&dyn PrefillPattern> {
        Some(self)
    }

    fn check(&self, config: &ModelConfig) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |(file, patterns)| patterns.check(file, config))
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(match self.file {
            None => {
                "vertical and slash lines for every head, where MInference searches each head's kind of pattern once for a model \
                 (`layerscope patterns`); lines are chosen for each chunk of the prompt"
            }
            Some(_) => {
                "patterns are chosen for each chunk of the prompt, where MInference chooses them for all of it"
            }
        })
    }
}

impl fmt::Display for MInference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = [("vertical", self.vertical, VERTICAL), ("slash", self.slash, SLASH)];
        let given = given.into_iter().filter(|(_, lines, standard)| lines != standard);
        let lines = given.map(|(name, lines, _)| format!("{name}={}", shown_tokens(lines)));
        let file = self.file.iter().map(|(file, _)| format!("heads={file}"));
        let given: Vec<String> = lines.chain(file).collect();
        f.write_str(KIND.name)?;
        if given.is_empty() { Ok(()) } else { write!(f, ":{}", given.join("+")) }
    }
}
