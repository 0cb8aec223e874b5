//! The colour bar of a map.

use crate::data::Scale;
use crate::design::{self, ColourMap, size};
use crate::widgets::axis;
use eframe::egui::{
    Color32, ColorImage, Rect, Response, Sense, TextureHandle, TextureOptions, Ui, Vec2, WidgetInfo,
    accesskit::Role, pos2, vec2,
};

/// Draws the bar with its ticks and the legend for undefined cells; `name` is the figure with its unit.
pub fn colour_bar(ui: &mut Ui, scale: &Scale, colours: ColourMap, name: &str, width: f32) -> Response {
    colour_bar_with_stripes(ui, scale, colours, name, width, "undefined")
}

/// The same, which says what stripes mean.
pub fn colour_bar_with_stripes(
    ui: &mut Ui,
    scale: &Scale,
    colours: ColourMap,
    name: &str,
    width: f32,
    striped: &str,
) -> Response {
    let palette = design::palette(ui);
    let (rect, response) = ui.allocate_exact_size(vec2(width, 32.0), Sense::hover());
    let striped = ui.painter().layout_no_wrap(striped.to_owned(), design::caption(), palette.weak_text);
    let undefined_width = striped.size().x + 30.0;
    let bar = Rect::from_min_size(rect.min, vec2(width - undefined_width, size::COLOUR_BAR));
    let painter = ui.painter();
    let id = response.id.with(colours);
    // Created outside the lock on the context's data, because creating it locks the context too.
    let texture: Option<TextureHandle> = ui.data_mut(|data| data.get_temp(id));
    let texture = texture.unwrap_or_else(|| {
        let pixels = colours.colours().map(design::colour32).to_vec();
        let image = ColorImage::new([pixels.len(), 1], pixels);
        let texture = ui.ctx().load_texture("colour bar", image, TextureOptions::LINEAR);
        ui.data_mut(|data| data.insert_temp(id, texture.clone()));
        texture
    });
    let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
    painter.image(texture.id(), bar, whole, Color32::WHITE);
    axis::foot(painter, palette, bar, scale.ticks());
    let stripes = Rect::from_min_size(pos2(bar.right() + 10.0, rect.top()), Vec2::splat(size::COLOUR_BAR));
    for stripe in 0..4 {
        let width = stripes.width() / 4.0;
        let left = stripes.left() + stripe as f32 * width;
        let area = Rect::from_min_size(pos2(left, stripes.top()), vec2(width, stripes.height()));
        painter.rect_filled(area, 0.0, palette.undefined[stripe % 2]);
    }
    let beside = pos2(stripes.right() + 4.0, stripes.center().y - striped.size().y / 2.0);
    painter.galley(beside, striped, palette.weak_text);
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, format!("Colour bar: {name}")));
    response.on_hover_text(name)
}
