//! Disks that are too small, or fill up during a fetch.

use crate::server::COMMIT;
use crate::{Bench, ID, assert_holds, gguf, hub, places};
use layerscope_models::{Error, ErrorKind, Progress, fetch};
use std::path::Path;
use std::sync::atomic::AtomicBool;

#[test]
fn what_cannot_fit_is_refused_before_anything_is_fetched() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    bench.hub.change(ID, |repository| repository.claimed_size = Some(1 << 60));
    let error = bench.error(ID);
    assert_eq!(error.kind(), ErrorKind::Failure);
    let error = error.to_string();
    assert!(error.contains("owner/model needs 1048576.0 TiB more"), "{error}");
    assert!(error.contains("HF_HUB_CACHE"), "{error}");
    assert!(bench.hub.downloads().is_empty());
    assert!(!bench.repository().exists());
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::process::{Command, Output};

    const FOLDER: &str = "LAYERSCOPE_TEST_FOLDER";
    const ENDPOINT: &str = "LAYERSCOPE_TEST_ENDPOINT";

    /// A shell command that runs one of the ignored tests below, as `{test}` in `script`.
    fn run(script: &str, test: &str, folder: &Path, endpoint: &str) -> Output {
        let program = std::env::current_exe().unwrap();
        let test = format!("exec {} --exact disk::unix::{test} --ignored --nocapture", program.display());
        Command::new("sh")
            .args(["-c", &script.replace("{test}", &test)])
            .env(FOLDER, folder)
            .env(ENDPOINT, endpoint)
            .output()
            .unwrap()
    }

    fn assert_passed(output: &Output) {
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    fn fetch_here() -> std::result::Result<std::path::PathBuf, Error> {
        let (folder, endpoint) = (std::env::var(FOLDER).unwrap(), std::env::var(ENDPOINT).unwrap());
        fetch(&hub(ID), &places(Path::new(&folder), &endpoint), &mut |_| {}, &AtomicBool::new(false))
    }

    fn assert_full(fetched: std::result::Result<std::path::PathBuf, Error>) {
        let error = fetched.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failure, "{error:?}");
        let error = error.to_string();
        assert!(error.contains("no room for model-Q8_0.gguf"), "{error}");
        assert!(error.contains("of 3.0 MiB are kept: make room and fetch it again"), "{error}");
    }

    /// A limit on file sizes behaves like a full disk, and needs no privileges.
    #[test]
    fn at_a_limit_the_bytes_are_kept_and_the_rest_follows() {
        let bench = Bench::new();
        bench.hub.has(ID, COMMIT, &gguf());
        // In blocks of 512 or 1024 bytes, depending on the shell: at most 2 MiB of the file's 3.
        let script = "trap '' XFSZ; ulimit -f 2048; {test}";
        assert_passed(&run(script, "is_full", bench.folder.path(), &bench.hub.endpoint()));
        let kept = bench.partial_length();
        assert!(kept == 1 << 20 || kept == 2 << 20, "{kept}");
        bench.hub.log();
        assert_holds(bench.fetch(ID).unwrap(), &gguf()[1].1);
        let downloads = bench.hub.downloads();
        assert_eq!(downloads[0].range.as_deref(), Some(format!("bytes={kept}-").as_str()));
    }

    #[test]
    #[ignore = "run by another test, under a limit"]
    fn is_full() {
        assert_full(fetch_here());
    }

    /// A small tmpfs in its own namespace, which fills up during the fetch.
    #[test]
    fn a_disk_that_fills_up_is_one_sentence() {
        let bench = Bench::new();
        bench.hub.has(ID, COMMIT, &gguf());
        let disk = bench.folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let mount = format!("mount -t tmpfs -o size=4m tmpfs {}", disk.display());
        let inside = |command: &str| format!("unshare --user --map-root-user --mount sh -c '{command}'");
        let may = Command::new("sh").args(["-c", &inside(&mount)]).output().unwrap();
        if !may.status.success() {
            eprintln!(
                "skipped: a disk cannot be mounted here ({})",
                String::from_utf8_lossy(&may.stderr).trim()
            );
            return;
        }
        let script = inside(&format!("{mount} && {{test}}"));
        assert_passed(&run(&script, "becomes_full", &disk, &bench.hub.endpoint()));
    }

    #[test]
    #[ignore = "run by another test, on a small disk"]
    fn becomes_full() {
        let folder = std::env::var(FOLDER).unwrap();
        let (folder, endpoint) = (Path::new(&folder), std::env::var(ENDPOINT).unwrap());
        let filler = folder.join("filler");
        let mut fill = |_: Progress<'_>| {
            if !filler.exists() {
                std::fs::write(&filler, vec![1; 2 << 20]).unwrap();
            }
        };
        let fetched = fetch(&hub(ID), &places(folder, &endpoint), &mut fill, &AtomicBool::new(false));
        assert_full(fetched);
        let refused = fetch_here().unwrap_err().to_string();
        assert!(refused.contains("owner/model needs") && refused.contains("has 0 B free"), "{refused}");
        std::fs::remove_file(&filler).unwrap();
        assert_holds(fetch_here().unwrap(), &gguf()[1].1);
    }
}
