//! One thread pool.

use crate::{Error, Result};

/// Makes rayon's global pool, one thread per physical core, the only one that computes. Call it first in `main`, while
/// the program has a single thread; `RAYON_NUM_THREADS` overrules the number.
///
/// candle has a second pool of spinning threads beside rayon's; on a busy machine each waits for the other's cores
/// (block-quantised products then ran ten times slower), so it is told to have no threads.
///
/// # Errors
/// [`Error::Failure`] where threads cannot be started.
pub fn one_pool() -> Result<()> {
    if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: as documented, no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return Ok(());
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(num_cpus::get_physical().min(num_cpus::get()))
        .build_global()
        .map_err(|e| Error::failure(format!("cannot start threads: {e}")))
}
