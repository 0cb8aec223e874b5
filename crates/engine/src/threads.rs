//! One thread pool.

use crate::{Error, Result};

/// Makes rayon's global pool, one thread per physical core; `RAYON_NUM_THREADS` overrules the number. The calling thread
/// becomes one of them: call it first on the thread that runs the model, for which handing out work then costs no
/// change of threads (a decode step does so a hundred times).
///
/// # Errors
/// [`Error::Failure`] where there is a pool already, or threads cannot be started.
pub fn one_pool() -> Result<()> {
    let wanted = std::env::var("RAYON_NUM_THREADS").ok().and_then(|threads| threads.parse().ok());
    let threads =
        wanted.filter(|&threads| threads > 0).unwrap_or(num_cpus::get_physical().min(num_cpus::get()));
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .use_current_thread()
        .build_global()
        .map_err(|e| Error::failure(format!("cannot start threads: {e}")))
}
