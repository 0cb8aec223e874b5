//! Records the drawing of a user interface instead of displaying it.

use super::svg;
use eframe::egui::epaint::{ClippedShape, ImageData};
use eframe::egui::{
    Color32, ColorImage, Context, Pos2, RawInput, Rect, TextureId, TextureOptions, Ui, Vec2, ViewportId,
};
#[cfg(not(target_arch = "wasm32"))]
use layerscope_engine::Error;
use layerscope_engine::Result;
use std::collections::BTreeMap;

/// Texture size that current graphics drivers support.
const WIDEST_TEXTURE: usize = 8_192;

/// A texture's pixels, and how they are sampled.
#[derive(Debug, Clone)]
pub(super) struct Texture {
    pub(super) image: ColorImage,
    pub(super) options: TextureOptions,
}

/// Shapes and textures at a size.
pub struct Drawing {
    ctx: Context,
    pub(super) shapes: Vec<ClippedShape>,
    pub(super) textures: BTreeMap<TextureId, Texture>,
    /// Width and height, points.
    pub(super) size: Vec2,
    pub(super) pixels_per_point: f32,
    passes: usize,
}

impl Drawing {
    /// Runs `ui` at `size` points without a window, `passes` times, because a layout needs several passes to
    /// settle. Keeps the last pass. The caller sets the context's themes and fonts.
    pub fn of(
        ctx: Context,
        size: Vec2,
        pixels_per_point: f32,
        passes: usize,
        ui: impl FnMut(&mut Ui),
    ) -> Self {
        // No animations, because there is no later frame.
        ctx.all_styles_mut(|style| style.animation_time = 0.0);
        let textures = BTreeMap::new();
        let mut drawing = Self { ctx, shapes: vec![], textures, size, pixels_per_point, passes: 0 };
        drawing.go_on(passes.max(1), ui);
        drawing
    }

    /// Runs `ui` again, `passes` times, because something it draws has come. Keeps the last pass.
    pub fn go_on(&mut self, passes: usize, mut ui: impl FnMut(&mut Ui)) {
        for _ in 0..passes {
            let mut input = RawInput {
                screen_rect: Some(Rect::from_min_size(Pos2::ZERO, self.size)),
                time: Some(self.passes as f64 / 60.0),
                max_texture_side: Some(WIDEST_TEXTURE),
                ..RawInput::default()
            };
            input.viewports.entry(ViewportId::ROOT).or_default().native_pixels_per_point =
                Some(self.pixels_per_point);
            self.passes += 1;
            let mut output = self.ctx.run_ui(input, &mut ui);
            for (id, deltas) in output.textures_delta.set.drain() {
                for delta in deltas {
                    let ImageData::Color(image) = delta.image;
                    self.update(id, &image, delta.options, delta.pos);
                }
            }
            // Freed textures may still be drawn in this pass, so keeps them all.
            output.textures_delta.free.clear();
            self.shapes = output.shapes;
        }
    }

    fn update(&mut self, id: TextureId, patch: &ColorImage, options: TextureOptions, at: Option<[usize; 2]>) {
        let Some([left, top]) = at else {
            self.textures.insert(id, Texture { image: patch.clone(), options });
            return;
        };
        let Some(texture) = self.textures.get_mut(&id) else { return };
        let width = texture.image.size[0];
        for (row, pixels) in patch.pixels.chunks_exact(patch.size[0].max(1)).enumerate() {
            let start = (top + row) * width + left;
            if let Some(target) = texture.image.pixels.get_mut(start..start + pixels.len()) {
                target.copy_from_slice(pixels);
            }
        }
    }

    /// Tessellated triangles.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn tessellated(&self) -> Vec<eframe::egui::epaint::ClippedPrimitive> {
        self.ctx.tessellate(self.shapes.clone(), self.pixels_per_point)
    }

    /// As PNG on a background colour.
    ///
    /// # Errors
    /// [`Error::Failure`] if the machine has no graphics driver, not even a software renderer.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn to_png(&self, background: Color32) -> Result<Vec<u8>> {
        let image = super::paint::paint(self, background)?;
        let mut bytes = std::io::Cursor::new(vec![]);
        image
            .write_to(&mut bytes, image::ImageFormat::Png)
            .map_err(|error| Error::failure(format!("the picture cannot be encoded: {error}")))?;
        Ok(bytes.into_inner())
    }

    /// As PNG on a background colour, drawn from its SVG: a browser lets no graphics driver draw off screen.
    ///
    /// # Errors
    /// As [`super::png`].
    #[cfg(target_arch = "wasm32")]
    pub fn to_png(&self, background: Color32) -> Result<Vec<u8>> {
        super::png(&self.to_svg(background), self.pixels_per_point)
    }

    /// As SVG on a background colour; text stays text.
    pub fn to_svg(&self, background: Color32) -> String {
        svg::svg(self, background)
    }
}
