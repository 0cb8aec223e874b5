//! What a program sets up once: one thread pool, its vector instructions, and memory that is kept for the next use.

use crate::{Error, Result, placement};
use layerscope_kernels::Instructions;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Threads of the pool; 0 where nobody said.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads [`one_pool`] and [`pool_for_several`] make.
pub fn use_threads(threads: usize) {
    WANTED.store(threads, Ordering::Relaxed);
}

/// Whether each of them stays on a physical core of its own.
static PINNED: AtomicBool = AtomicBool::new(false);

/// Has [`one_pool`] and [`pool_for_several`] keep each thread on a physical core of its own. For machines that do nothing else: a thread
/// waits for its core while something else runs there.
pub fn pin_threads() {
    PINNED.store(true, Ordering::Relaxed);
}

/// Makes rayon's global pool, one thread per physical core where neither [`use_threads`] nor `RAYON_NUM_THREADS` says another number. The
/// calling thread becomes one of them: call it first on the thread that runs the model, for which handing out work then costs no
/// change of threads (a decode step does so a hundred times). A pool that the program already has stays as it is.
///
/// # Errors
/// [`Error::Failure`] where threads cannot be started; [`Error::Input`] where they cannot be pinned as [`pin_threads`] asks.
pub fn one_pool() -> Result<()> {
    build(rayon::ThreadPoolBuilder::use_current_thread)
}

/// The same pool where several threads run models: no caller is one of its threads, which would lack while that caller waits for
/// something else. Call it before anything calls [`one_pool`].
///
/// # Errors
/// As [`one_pool`].
pub fn pool_for_several() -> Result<()> {
    build(|pool| pool)
}

fn build(whose: impl FnOnce(rayon::ThreadPoolBuilder) -> rayon::ThreadPoolBuilder) -> Result<()> {
    let said = Some(WANTED.load(Ordering::Relaxed)).filter(|&threads| threads > 0);
    let variable = || std::env::var("RAYON_NUM_THREADS").ok()?.parse().ok().filter(|&threads| threads > 0);
    let threads = said.or_else(variable).unwrap_or(num_cpus::get_physical().min(num_cpus::get()));
    let mut pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    if PINNED.load(Ordering::Relaxed) {
        let cores = cores_for(threads)?;
        // A caller that becomes the first thread goes where it likes, which leaves it the first core: threads that it starts would have to
        // stay with it otherwise.
        pool = pool.start_handler(move |index| {
            let _ = placement::stay_on(&cores[index]);
        });
    }
    let built = whose(pool).build_global();
    // An error without a cause says that there is a pool.
    match built.as_ref().err().and_then(std::error::Error::source) {
        None => Ok(()),
        Some(cause) => Err(Error::failure(format!("cannot start threads: {cause}"))),
    }
}

/// A physical core for each of so many threads.
fn cores_for(threads: usize) -> Result<Vec<Vec<usize>>> {
    let cores = placement::cores()
        .map_err(|error| Error::Input(format!("threads cannot be pinned here ({error}); leave --pin out")))?;
    if threads > cores.len() {
        return Err(Error::Input(format!(
            "{threads} threads cannot be pinned to {} physical cores; give --threads {} or leave --pin out",
            cores.len(),
            cores.len()
        )));
    }
    Ok(cores)
}

/// Runs kernels with the vector instructions that `LAYERSCOPE_INSTRUCTIONS` names, where it is set: to see what others do, call it before
/// anything is computed.
///
/// # Errors
/// [`Error::Input`] where this processor has none of that name.
pub fn choose_instructions() -> Result<()> {
    let Some(wanted) = std::env::var_os("LAYERSCOPE_INSTRUCTIONS") else { return Ok(()) };
    let available = Instructions::available();
    match available.iter().find(|instructions| wanted == instructions.name()) {
        Some(instructions) => {
            instructions.choose();
            Ok(())
        }
        None => {
            let names: Vec<_> = available.iter().map(|instructions| instructions.name()).collect();
            Err(Error::Input(format!(
                "LAYERSCOPE_INSTRUCTIONS is {}, but this processor has {}",
                wanted.to_string_lossy().escape_debug(),
                names.join(", ")
            )))
        }
    }
}

/// Tells glibc's allocator to keep freed memory for the next activations rather than return it to the system, which would
/// clear it again page by page: a tenth of a prefill's time. Elsewhere it does nothing.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGEST_ON_HEAP: i32 = 32 << 20;
        const KEPT: i32 = 256 << 20;
        // SAFETY: sets two numbers of the allocator, which takes its own lock.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_ON_HEAP);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

/// Returns what the allocator has kept to the system, so that the memory of what follows can be told. Elsewhere than on glibc
/// it does nothing.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator takes its own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_threads_than_cores_are_not_pinned() {
        if let Ok(cores) = crate::placement::cores() {
            assert_eq!(super::cores_for(cores.len()).expect("enough"), cores);
            let refused = super::cores_for(cores.len() + 1).expect_err("too many").to_string();
            assert!(refused.contains("leave --pin out"), "{refused}");
        }
    }

    #[test]
    fn a_pool_that_is_there_is_used() {
        let threads = rayon::current_num_threads();
        super::one_pool().expect("a pool");
        assert_eq!(rayon::current_num_threads(), threads);
    }
}
