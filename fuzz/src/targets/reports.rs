//! Reports and comparisons of runs from others: an input is some files of a run folder, in the places of a sound run's.

use crate::mutate::{Random, json, parquet, records};
use crate::{Target, recorded};
use layerscope_cutoff::recommend::Options;
use layerscope_report::{Report, render};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A report of one run.
pub const REPORT: Target = Target {
    name: "report",
    read: |input| {
        let folder = folder(input);
        check(&[folder.path().to_owned()], &FORMATS);
    },
    mutate,
    seeds,
};

/// A comparison of a sound run with another, in either order.
pub const COMPARISON: Target = Target {
    name: "comparison",
    read: |input| {
        let (sound, changed) = (recorded::with(&[]), folder(input));
        let mut folders = [sound.path().to_owned(), changed.path().to_owned()];
        if input.len().is_multiple_of(2) {
            folders.reverse();
        }
        // One format each time, since all three take three times as long.
        check(&folders, &FORMATS[input.len() / 2 % FORMATS.len()..][..1]);
    },
    mutate,
    seeds,
};

/// Reports in formats that are text.
const FORMATS: [&str; 3] = ["report.html", "report.md", "report.json"];

/// Nothing in a report acts but our own script.
fn check(folders: &[PathBuf], formats: &[&str]) {
    let Ok(report) = Report::read(folders, Options::default()) else { return };
    for name in formats {
        let files = render(&report, Path::new(name)).expect("a report that was read can be written");
        for file in files {
            let text = String::from_utf8(file.bytes).expect("text");
            let acts = |character: char| {
                (character.is_control() && !"\n\t".contains(character))
                    || ('\u{202a}'..='\u{202e}').contains(&character)
            };
            let acting = text.chars().find(|&character| acts(character));
            // JSON escapes what is below a blank, and nobody but programs reads it.
            assert!(acting.is_none() || name.ends_with(".json"), "{acting:?} in {}", file.path.display());
            assert!(
                !name.ends_with(".html") || text.matches("<script").count() == 1,
                "a script that is not ours"
            );
        }
    }
}

fn folder(input: &[u8]) -> TempDir {
    let files: Vec<(&str, &[u8])> = records::split(input)
        .into_iter()
        .filter_map(|(number, bytes)| Some((name(number)?, bytes)))
        .collect();
    recorded::with(&files)
}

/// The name of a run's file.
fn name(number: u8) -> Option<&'static str> {
    recorded::files().get(usize::from(number)).map(|(name, _)| name.as_str())
}

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    records::changed(input, random, |number, file, random| {
        if name(number)?.ends_with(".parquet") {
            parquet::changed(file, random)
        } else {
            json::changed(file, random)
        }
    })
}

/// Each file alone, and pairs with the manifest.
fn seeds() -> Vec<Vec<u8>> {
    let files: Vec<(u8, &[u8])> = recorded::files()
        .iter()
        .enumerate()
        .map(|(number, (_, bytes))| (number as u8, bytes.as_slice()))
        .collect();
    let alone = files.iter().map(|&file| records::joined([file]));
    let pairs = files.windows(2).map(|pair| records::joined(pair.iter().copied()));
    alone.chain(pairs).collect()
}
