//! `layerscope view`: the viewer, in a window or as a picture file.

use crate::args::{ThemeName, ViewArguments, ViewName};
use crate::commands::demo;
use crate::models;
use layerscope_app::state::View;
use layerscope_app::{Launch, Open, SeenModels, Theme, open_window, screenshot, vec2};
use layerscope_engine::{Error, ErrorKind, Result};
use layerscope_models::Places;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(arguments: &ViewArguments) -> Result<ExitCode> {
    let runs_folder = PathBuf::from(".");
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
    };
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
