//! Single files of a run folder; the others are those of a sound run.

use crate::mutate::{json, parquet};
use crate::{Target, recorded, scratch};
use layerscope_diagnostics::patching::PatchReport;
use layerscope_diagnostics::policies::summarise_policies;
use layerscope_diagnostics::run::{self as folder, Run, Table};
use layerscope_engine::Result;
use layerscope_report::patching_svg;

/// What a run folder is read for.
fn read_all(run: &Run) -> Result<()> {
    let _ = run.show()?;
    for id in run.prompt_ids() {
        run.prompt(id)?;
        run.steps(id)?;
        run.tokens(id)?;
    }
    Ok(())
}

/// `manifest.json`.
pub const MANIFEST: Target = Target {
    name: "run_manifest",
    read: |input| {
        let folder = recorded::with(&[(folder::MANIFEST, input)]);
        let _ = Run::open(folder.path()).and_then(|run| read_all(&run));
    },
    mutate: json::changed,
    seeds: || vec![recorded::file(folder::MANIFEST).to_vec()],
};

/// `continuations.json`.
pub const CONTINUATIONS: Target = Target {
    name: "run_continuations",
    read: |input| {
        let manifest = recorded::file(folder::MANIFEST);
        let folder = recorded::with(&[(folder::MANIFEST, manifest), (folder::CONTINUATIONS, input)]);
        let run = Run::open(folder.path()).expect("a sound run");
        if let Ok(Some(found)) = run.continuations() {
            let _ = found.of_policy("speed:1+bos");
        }
    },
    mutate: json::changed,
    seeds: || vec![recorded::file(folder::CONTINUATIONS).to_vec()],
};

/// `sets.json`.
pub const SETS: Target = Target {
    name: "run_sets",
    read: |input| {
        let folder = recorded::with(&[(folder::SETS, input)]);
        let _ = Run::open(folder.path()).expect("a sound run").sets();
    },
    mutate: json::changed,
    seeds: || vec![recorded::file(folder::SETS).to_vec()],
};

/// `bench.json`.
pub const BENCH_REPORT: Target = Target {
    name: "bench_report",
    read: |input| {
        let folder = scratch::folder([(layerscope_bench::FILE_NAME, input)]);
        if let Ok(Some(report)) = layerscope_bench::read_of_run(folder.path()) {
            let _ = layerscope_bench::to_parquet(&report);
        }
    },
    mutate: json::changed,
    seeds: || vec![recorded::file(layerscope_bench::FILE_NAME).to_vec()],
};

/// `spans.parquet`.
pub const SPANS: Target = Target {
    name: "run_spans",
    read: |input| {
        let folder = recorded::with(&[(folder::SPANS, input)]);
        let _ = Run::open(folder.path()).expect("a sound run").spans();
    },
    mutate: parquet::changed,
    seeds: || vec![recorded::file(folder::SPANS).to_vec()],
};

/// `patches.parquet`.
pub const PATCHES: Target = Target {
    name: "run_patches",
    read: |input| {
        let folder = recorded::with(&[(folder::PATCHES, input)]);
        let run = Run::open(folder.path()).expect("a sound run");
        for map in run.patches().unwrap_or_default() {
            let _ = patching_svg(&map, "model");
            let _ = PatchReport::from(map);
        }
    },
    mutate: parquet::changed,
    seeds: || vec![recorded::file(folder::PATCHES).to_vec()],
};

/// `policies.parquet`.
pub const POLICIES: Target = Target {
    name: "run_policies",
    read: |input| {
        let folder = recorded::with(&[(folder::POLICIES, input)]);
        let run = Run::open(folder.path()).expect("a sound run");
        if let Ok(records) = run.policies() {
            let _ = summarise_policies(&records);
        }
    },
    mutate: parquet::changed,
    seeds: || vec![recorded::file(folder::POLICIES).to_vec()],
};

/// A number, for which of the tables, and its bytes.
pub const TABLE: Target = Target {
    name: "run_table",
    read: |input| {
        let Some((number, table)) = input.split_first() else { return };
        let name = Table::ALL[usize::from(*number) % Table::ALL.len()].file_name();
        let folder = recorded::with(&[(name, table)]);
        let _ = Run::open(folder.path()).and_then(|run| read_all(&run));
    },
    mutate: |input, random| {
        let (number, table) = input.split_first()?;
        Some([&[*number][..], &parquet::changed(table, random)?].concat())
    },
    seeds: || {
        let tables = Table::ALL.iter().enumerate();
        tables
            .map(|(number, table)| [&[number as u8][..], recorded::file(table.file_name())].concat())
            .collect()
    },
};
