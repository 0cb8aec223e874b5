//! Placeholder until the real module is written.
use eframe::egui;
/// x
pub struct Drawing;
impl Drawing {
    /// x
    pub fn of(_: egui::Context, _: egui::Vec2, _: f32, _: usize, _: impl FnMut(&mut egui::Ui)) -> Self {
        Self
    }
    /// x
    pub fn to_png(&self, _: egui::Color32) -> layerscope_engine::Result<Vec<u8>> {
        Ok(vec![])
    }
    /// x
    pub fn to_svg(&self, _: egui::Color32) -> String {
        String::new()
    }
}
