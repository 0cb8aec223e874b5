use eframe::egui;
use egui_kittest::Harness;
use layerscope_app::{Launch, Open, Remembered, Viewer, state::View};
#[test]
fn look() {
    let run = std::env::var("RUN").unwrap();
    let size: Vec<f32> =
        std::env::var("SIZE").unwrap_or("1440x900".into()).split('x').map(|v| v.parse().unwrap()).collect();
    for theme in [egui::Theme::Dark, egui::Theme::Light] {
        for view in View::ALL {
            if let Ok(only) = std::env::var("VIEW")
                && !view.name().eq_ignore_ascii_case(&only)
            {
                continue;
            }
            let ctx = egui::Context::default();
            let _ = ctx;
            let launch = Launch {
                open: Open::Path(run.clone().into()),
                models: vec![],
                runs_folder: ".".into(),
                view: Some(view),
                theme: Some(theme),
            };
            let mut harness =
                Harness::builder().with_size([size[0], size[1]]).wgpu().with_max_steps(200).build_ui_state(
                    |ui, viewer: &mut Option<Viewer>| {
                        let viewer = viewer.get_or_insert_with(|| {
                            let mut v = Viewer::new(ui.ctx(), launch.clone(), Remembered::default());
                            v.settle().unwrap();
                            v
                        });
                        viewer.frame(ui);
                    },
                    None,
                );
            harness.run_steps(6);
            let image = harness.render().unwrap();
            image.save(format!("/tmp/look-{}-{theme:?}.png", view.name())).unwrap();
        }
    }
}
