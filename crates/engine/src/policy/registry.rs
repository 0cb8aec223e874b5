//! Every policy by name, and how names are read.

use super::{
    Anchors, Cutoff, Policy, PolicyRules, full, keep, lazyllm, pop, scored, selfonly, sliminfer, sparse,
    speed, streaming, swiftkv,
};
use crate::{Error, Result};
use std::sync::Arc;

/// Every policy.
pub static POLICIES: [PolicyKind; 17] = [
    full::KIND,
    speed::KIND,
    keep::KIND,
    selfonly::KIND,
    pop::KIND,
    swiftkv::KIND,
    sliminfer::KIND,
    lazyllm::KIND,
    streaming::KIND,
    sparse::minference::KIND,
    sparse::flexprefill::KIND,
    scored::KINDS[0],
    scored::KINDS[1],
    scored::KINDS[2],
    scored::KINDS[3],
    scored::KINDS[4],
    scored::KINDS[5],
];

/// A policy without its numbers.
#[derive(Debug, Clone, Copy)]
pub struct PolicyKind {
    /// The name's first part.
    pub name: &'static str,
    /// The whole name, with what stands for numbers in capitals.
    pub syntax: &'static str,
    /// What it does, in a sentence.
    pub description: &'static str,
    /// Where no cutoff makes a policy of it: the whole name that is offered first.
    pub standard_name: Option<&'static str>,
    pub(super) parse: fn(&Argument<'_>) -> Result<Arc<dyn PolicyRules>>,
}

impl PolicyKind {
    /// The kind of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        POLICIES.iter().find(|kind| kind.name == name)
    }

    /// Whether its argument is a cutoff, so that a cutoff alone makes a policy of it.
    pub fn by_cutoff(&self) -> bool {
        self.standard_name.is_none()
    }

    /// This kind of policy at a cutoff, with position 0 as anchor where asked for and where the kind has anchors.
    ///
    /// # Errors
    /// [`Error::Input`] on a cutoff that the model does not have, and for a kind that has none.
    pub fn at(&self, cutoff: usize, anchor_bos: bool, layers: usize) -> Result<Policy> {
        if !self.by_cutoff() {
            return Err(Error::input(format!(
                "policy `{}` has no cutoff; give it as {}",
                self.name, self.syntax
            )));
        }
        let name = format!("{}:{cutoff}", self.name);
        let anchored = anchor_bos.then(|| Policy::parse(&format!("{name}{}", Anchors::bos()), layers).ok());
        anchored.flatten().map_or_else(|| Policy::parse(&name, layers), Ok)
    }
}

/// Every policy with its sentence below it, for help texts.
pub fn policies_help() -> String {
    let policies = POLICIES.iter().map(|kind| format!("  {}\n      {}\n", kind.syntax, kind.description));
    policies.collect::<String>()
        + "Layers ≥ CUTOFF are the ones that the prompt does not reach; a cutoff of all layers is `full`. ANCHORS are \
           prompt positions that exist at every layer: `bos` (position 0), numbers and ranges, as in \
           speed:24+bos+5+100-120."
}

/// The rules of a name.
pub(super) fn parse(name: &str, layers: usize) -> Result<Arc<dyn PolicyRules>> {
    if let Some((before, set)) = keep::behind_cutoff(name) {
        let before = argument(before, layers)?;
        return match before.kind.name == speed::KIND.name {
            true => keep::composed(before.cutoff_of_less_than_all()?, &argument(set, layers)?),
            false => Err(before.malformed()),
        };
    }
    let argument = argument(name, layers)?;
    (argument.kind.parse)(&argument)
}

/// Whether reading a policy's name opens a file that it names: programs that take names from others may not want that.
pub fn names_a_file(name: &str) -> bool {
    let (kind, text) = name.split_once(':').unwrap_or((name, ""));
    name.contains("heads=") || (kind == sparse::minference::KIND.name && !text.is_empty())
}

/// A name, split into its kind and what follows.
pub(super) fn argument(name: &str, layers: usize) -> Result<Argument<'_>> {
    let (kind, text) = match name.split_once(':') {
        Some((kind, text)) => (kind, Some(text)),
        None => (name, None),
    };
    let Some(kind) = PolicyKind::named(kind) else { return Err(unknown(name, kind)) };
    Ok(Argument { name, kind, text, layers })
}

/// What follows a policy's name.
pub(super) struct Argument<'a> {
    name: &'a str,
    kind: &'static PolicyKind,
    text: Option<&'a str>,
    pub(super) layers: usize,
}

impl Argument<'_> {
    /// Nothing.
    pub(super) fn none(&self) -> Result<()> {
        if self.text.is_none() { Ok(()) } else { Err(self.malformed()) }
    }

    /// A cutoff, and the rules that it makes; every policy at a cutoff of L is the full model.
    pub(super) fn cutoff<R: PolicyRules + 'static>(
        &self,
        rules: fn(Cutoff) -> R,
    ) -> Result<Arc<dyn PolicyRules>> {
        let cutoff = self.parsed_cutoff()?;
        if cutoff.anchors == Anchors::none() {
            Ok(self.unless_full(cutoff, rules))
        } else {
            Err(self.malformed())
        }
    }

    /// A cutoff and anchors, and the rules that they make.
    pub(super) fn cutoff_and_anchors<R: PolicyRules + 'static>(
        &self,
        rules: fn(Cutoff) -> R,
    ) -> Result<Arc<dyn PolicyRules>> {
        Ok(self.unless_full(self.parsed_cutoff()?, rules))
    }

    /// A cutoff with anchors; `None` where it is that of the full model.
    fn cutoff_of_less_than_all(&self) -> Result<Option<Cutoff>> {
        let cutoff = self.parsed_cutoff()?;
        Ok(Some(cutoff).filter(|cutoff| cutoff.layer < self.layers))
    }

    fn unless_full<R: PolicyRules + 'static>(
        &self,
        cutoff: Cutoff,
        rules: fn(Cutoff) -> R,
    ) -> Arc<dyn PolicyRules> {
        if cutoff.layer == self.layers { Arc::new(full::Full) } else { Arc::new(rules(cutoff)) }
    }

    fn parsed_cutoff(&self) -> Result<Cutoff> {
        let mut items = self.text.unwrap_or_default().split('+');
        let cutoff = items.next().unwrap_or_default();
        let layer = cutoff.parse().ok().ok_or_else(|| self.malformed())?;
        let anchors = Anchors::parse(items).ok_or_else(|| self.malformed())?;
        if layer == 0 || layer > self.layers {
            return Err(self.invalid(format!(
                "policy {}: the cutoff must be between 1 and {}, the model's number of layers",
                self.name, self.layers
            )));
        }
        Ok(Cutoff { layer, anchors })
    }

    /// What stands between plus signs; nothing where there is nothing.
    pub(super) fn items(&self) -> impl Iterator<Item = &str> {
        self.text.into_iter().flat_map(|text| text.split('+'))
    }

    pub(super) fn malformed_schedule(&self) -> Error {
        self.invalid(format!(
            "policy `{}`: a schedule names layers below {} in ascending order, each with the tokens that it keeps, as in \
             {}:{}=2k+{}=25%",
            self.name,
            self.layers,
            self.kind.name,
            self.layers / 3,
            2 * self.layers / 3
        ))
    }

    pub(super) fn of_another_depth(&self, schedule: &str, depth: usize) -> Error {
        self.invalid(format!(
            "policy `{}`: the schedule {schedule} is for a model of {depth} layers, and this one has {}; {}:scaled scales \
             the paper's schedule to any model",
            self.name, self.layers, self.kind.name
        ))
    }

    pub(super) fn malformed(&self) -> Error {
        self.invalid(format!("policy `{}` cannot be read; give it as {}", self.name, self.kind.syntax))
    }

    fn invalid(&self, sentence: String) -> Error {
        Error::InvalidPolicy { name: self.name.to_owned(), sentence }
    }
}

fn unknown(name: &str, kind: &str) -> Error {
    let mut known: Vec<(f64, &'static str)> =
        POLICIES.iter().map(|known| (strsim::jaro_winkler(kind, known.name), known.syntax)).collect();
    known.sort_by(|a, b| b.0.total_cmp(&a.0));
    let known = known.into_iter().map(|(_, syntax)| syntax).collect();
    Error::UnknownPolicy { name: name.to_owned(), known }
}
