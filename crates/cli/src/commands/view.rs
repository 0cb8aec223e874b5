//! `layerscope view`: the viewer, in a window or as a picture file.

use crate::args::{ThemeName, ViewArguments, ViewName};
use crate::commands::{api_key, demo};
use crate::models;
use layerscope_app::engine::remote::{Address, Pipes, Scheme, Ssh, WebSocket};
use layerscope_app::state::View;
use layerscope_app::{Host, Launch, Open, SeenModels, Theme, open_window, screenshot, vec2};
use layerscope_engine::{Error, ErrorKind, ModelSource, Result};
use layerscope_models::Places;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(arguments: &ViewArguments) -> Result<ExitCode> {
    let runs_folder = PathBuf::from(".");
    let address = arguments.path.as_deref().and_then(Path::to_str).filter(|path| Address::is_meant(path));
    if let Some(address) = address {
        return there(arguments, address);
    }
    let open = match &arguments.path {
        Some(path) if !path.exists() || arguments.architecture.is_some() || arguments.adapter.is_some() => {
            let source = models::resolve(&path.to_string_lossy()).map_err(|error| match error.kind() {
                ErrorKind::Input => Error::input(format!(
                    "there is no run folder, model or prompt file {}: {error}",
                    path.display()
                )),
                _ => error,
            })?;
            let source = source.of_architecture(arguments.architecture.as_deref());
            Open::Model(source.with_adapter(arguments.adapter.clone()))
        }
        Some(path) => Open::Path(path.clone()),
        None => Open::Demo {
            model: models::embedded(),
            prompts: demo::prompts()?,
            lessons: demo::lessons()?,
            max_new_tokens: demo::NEW_TOKENS,
            folder: cache_folder().unwrap_or_else(std::env::temp_dir).join("demo"),
        },
    };
    let launch = Launch {
        open,
        models: models::named(),
        model_of_runs: arguments.model.as_deref().map(models::resolve).transpose()?,
        seen: SeenModels { remember: models::remember, remembered: models::remembered },
        runs_folder,
        view: arguments.view.map(View::from),
        theme: arguments.theme.map(Theme::from),
        drawn_in_software: false,
        device: arguments.device.device,
        host: None,
    };
    show(arguments, launch)
}

/// Shows what is on another machine.
fn there(arguments: &ViewArguments, address: &str) -> Result<ExitCode> {
    let address = Address::parse(address)?;
    let source = |path: &Path| {
        let source = ModelSource::path(path).of_architecture(arguments.architecture.as_deref());
        source.with_adapter(arguments.adapter.clone())
    };
    let open = match &address.path {
        Some(path) if arguments.architecture.is_some() || arguments.adapter.is_some() => {
            Open::Model(source(path))
        }
        Some(path) => Open::Path(path.clone()),
        None => Open::Nothing,
    };
    let name = address.to_string();
    let reach: Arc<dyn Fn() -> Result<Pipes> + Send + Sync> = match address.scheme {
        Scheme::Ssh => {
            let command = arguments.ssh.clone().or_else(|| std::env::var("LAYERSCOPE_SSH").ok());
            let command = command.unwrap_or_else(|| "ssh".into());
            let ssh = Ssh::new(address, &command, arguments.remote_layerscope.clone())?;
            Arc::new(move || ssh.start())
        }
        Scheme::WebSocket => {
            let socket = WebSocket::new(address, api_key(arguments.api_key.as_ref()))?;
            Arc::new(move || socket.connect())
        }
    };
    let launch = Launch {
        open,
        models: vec![],
        // Resolved by the engine there.
        model_of_runs: arguments.model.as_ref().map(|model| ModelSource::named(model, model)),
        seen: SeenModels::default(),
        runs_folder: PathBuf::from("."),
        view: arguments.view.map(View::from),
        theme: arguments.theme.map(Theme::from),
        drawn_in_software: false,
        device: arguments.device.device,
        host: Some(Host { name, reach }),
    };
    show(arguments, launch)
}

fn show(arguments: &ViewArguments, launch: Launch) -> Result<ExitCode> {
    match &arguments.screenshot {
        Some(path) => {
            let (width, height) = arguments.size;
            let size = vec2(width as f32, height as f32);
            screenshot(launch, size, arguments.pixels_per_point, path)?;
        }
        None => open_window(launch)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The cache folder of the user.
fn cache_folder() -> Option<PathBuf> {
    Places::from_environment().models_folder.and_then(|models| models.parent().map(Path::to_owned))
}

impl From<ViewName> for View {
    fn from(name: ViewName) -> Self {
        match name {
            ViewName::Map => Self::Map,
            ViewName::Pattern => Self::Pattern,
            ViewName::Reading => Self::Reading,
            ViewName::Curves => Self::Curves,
            ViewName::Heads => Self::Heads,
            ViewName::Frontier => Self::Frontier,
            ViewName::Patching => Self::Patching,
            ViewName::Generate => Self::Generate,
            ViewName::Record => Self::Record,
            ViewName::Compare => Self::Compare,
            ViewName::Adapt => Self::Adapt,
        }
    }
}

impl From<ThemeName> for Theme {
    fn from(name: ThemeName) -> Self {
        match name {
            ThemeName::Light => Self::Light,
            ThemeName::Dark => Self::Dark,
        }
    }
}
