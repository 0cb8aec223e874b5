//! Another machine, in this process: an engine at the other end of two pipes.

use layerscope_app::engine::remote::{Machine, Pipes, serve};
use layerscope_app::{Host, Launch, SeenModels};
use layerscope_engine::{Error, Interrupt, ModelSource};
use std::io::pipe;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The other machine's name.
pub(crate) const NAME: &str = "gpu-box";

/// The connections to another machine.
#[derive(Clone, Default)]
pub(crate) struct Elsewhere {
    served: Arc<Mutex<Vec<Arc<Interrupt>>>>,
}

impl Elsewhere {
    /// Options that open a path of the other machine.
    pub(crate) fn launch(&self, path: &Path) -> Launch {
        let served = Arc::clone(&self.served);
        let reach = move || {
            let pipes = || pipe().map_err(|error| Error::failure(error.to_string()));
            let ((from_window, to_engine), (from_engine, to_window)) = (pipes()?, pipes()?);
            let interrupt = Arc::new(Interrupt::new(false));
            served.lock().expect("nobody panics").push(Arc::clone(&interrupt));
            std::thread::spawn(move || serve(from_window, to_window, machine(), &interrupt));
            Ok(Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None })
        };
        let host = Host { name: NAME.into(), reach: Arc::new(reach) };
        Launch { host: Some(host), models: vec![], ..super::launch(path) }
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        for interrupt in self.served.lock().expect("nobody panics").drain(..) {
            interrupt.store(true, Ordering::Relaxed);
        }
    }
}

fn machine() -> Machine {
    let models = || vec![ModelSource::path(super::tiny_model())];
    let resolve = |name: &str| {
        let known = ModelSource::path(super::tiny_model());
        if name == known.name { Ok(known) } else { Err(Error::input(format!("{name} is no model there"))) }
    };
    Machine { resolve, models, seen: SeenModels::default() }
}
