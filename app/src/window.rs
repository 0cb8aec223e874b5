//! The window on the screen, or in a page of a browser.

use crate::viewer::Viewer;
use eframe::egui::{Context, Ui};
#[cfg(not(target_arch = "wasm32"))]
use {
    crate::viewer::{Launch, Remembered},
    eframe::egui::{ViewportBuilder, ViewportCommand, vec2},
    layerscope_engine::{Error, Result},
    std::sync::{Arc, OnceLock},
};

/// Key of the window's saved state.
#[cfg(not(target_arch = "wasm32"))]
const NAME: &str = "layerscope";

pub(crate) struct Window {
    pub(crate) viewer: Viewer,
    /// Why it was started in vain, for [`open_window`].
    #[cfg(not(target_arch = "wasm32"))]
    in_vain: Arc<OnceLock<String>>,
}

impl eframe::App for Window {
    fn logic(&mut self, _ctx: &Context, _: &mut eframe::Frame) {
        self.viewer.progress();
        #[cfg(target_arch = "wasm32")]
        crate::web::mark(&self.viewer);
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(reason) = self.viewer.started_in_vain() {
            self.in_vain.get_or_init(|| reason.to_owned());
            _ctx.send_viewport_cmd(ViewportCommand::Close);
        }
    }

    fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
        self.viewer.frame(ui);
    }

    fn save(&mut self, storage: &mut dyn eframe::Storage) {
        eframe::set_value(storage, eframe::APP_KEY, &self.viewer.remembered());
    }
}

/// Shows the viewer until the user closes it. A running recording keeps its finished prompts.
///
/// # Errors
/// [`Error::Failure`] if no window can be opened; [`Error::Input`] if the other machine that it is to be on cannot be reached, or has
/// nothing at the path.
#[cfg(not(target_arch = "wasm32"))]
pub fn open_window(launch: Launch) -> Result<()> {
    let options = eframe::NativeOptions {
        viewport: ViewportBuilder::default()
            .with_title("layerscope")
            .with_app_id(NAME)
            .with_inner_size(vec2(1_440.0, 900.0))
            .with_min_inner_size(vec2(800.0, 500.0)),
        ..Default::default()
    };
    let in_vain = Arc::new(OnceLock::new());
    let told = Arc::clone(&in_vain);
    let create = |creation: &eframe::CreationContext<'_>| -> std::result::Result<Box<dyn eframe::App>, _> {
        let remembered = creation.storage.and_then(|storage| eframe::get_value(storage, eframe::APP_KEY));
        let remembered: Remembered = remembered.unwrap_or_default();
        let in_software = |state: &eframe::egui_wgpu::RenderState| {
            state.adapter.get_info().device_type == eframe::wgpu::DeviceType::Cpu
        };
        let launch = Launch {
            drawn_in_software: creation.wgpu_render_state.as_ref().is_some_and(in_software),
            ..launch
        };
        Ok(Box::new(Window { viewer: Viewer::new(&creation.egui_ctx, launch, remembered), in_vain: told }))
    };
    eframe::run_native(NAME, options, Box::new(create)).map_err(|error| {
        // The message starts with the location in the library.
        let error = error.to_string();
        let reason = error.rsplit(": ").next().unwrap_or(&error).trim_end_matches('.');
        Error::failure(format!(
            "no window can be opened ({reason}); on a machine without a display, use layerscope view RUN --screenshot \
             out.png"
        ))
    })?;
    in_vain.get().map_or(Ok(()), |reason| Err(Error::input(reason)))
}
