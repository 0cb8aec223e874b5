//! Renders a drawing with a graphics driver, without a window.

use super::drawing::Drawing;
use eframe::egui::epaint::ImageDelta;
use eframe::egui::{Color32, Rgba};
use eframe::egui_wgpu::{
    RenderState, RendererOptions, ScreenDescriptor, WgpuConfiguration, WgpuSetup, WgpuSetupCreateNew,
};
use image::RgbaImage;
use layerscope_engine::{Error, Result};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Timeout; a picture takes much less, even in software.
const PATIENCE: Duration = Duration::from_secs(30);

const NO_DRIVER: &str = "there is no graphics driver to draw the picture with; install one, in software will do \
                         (Debian: apt install mesa-vulkan-drivers libvulkan1), or export as SVG";

/// Renders the drawing on a background colour.
///
/// # Errors
/// [`Error::Failure`] if there is no driver, or if it fails.
pub(super) fn paint(drawing: &Drawing, background: Color32) -> Result<RgbaImage> {
    let state = driver()?;
    let screen = ScreenDescriptor {
        size_in_pixels: [drawing.size.x, drawing.size.y]
            .map(|points| (points * drawing.pixels_per_point).round().max(1.0) as u32),
        pixels_per_point: drawing.pixels_per_point,
    };
    let [width, height] = screen.size_in_pixels;
    let largest = state.device.limits().max_texture_dimension_2d;
    if width.max(height) > largest {
        return Err(Error::input(format!(
            "{width} × {height} pixels are more than the graphics driver draws ({largest} a side); choose a smaller size"
        )));
    }
    let target = state.device.create_texture(&wgpu::TextureDescriptor {
        label: Some("picture"),
        size: wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: state.target_format,
        usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
        view_formats: &[],
    });
    render(drawing, background, &state, &screen, &target);
    read_back(&state, &target)
}

fn driver() -> Result<RenderState> {
    let mut setup = WgpuSetupCreateNew::without_display_handle();
    setup.instance_descriptor.backends = wgpu::Backends::PRIMARY;
    let setup = WgpuSetup::CreateNew(setup);
    let instance = pollster::block_on(setup.new_instance());
    let configuration = WgpuConfiguration { wgpu_setup: setup, ..WgpuConfiguration::default() };
    let state = RenderState::create(&configuration, &instance, None, RendererOptions::PREDICTABLE);
    pollster::block_on(state).map_err(|_| Error::failure(NO_DRIVER))
}

fn render(
    drawing: &Drawing,
    background: Color32,
    state: &RenderState,
    screen: &ScreenDescriptor,
    target: &wgpu::Texture,
) {
    let (device, queue) = (&state.device, &state.queue);
    let mut renderer = state.renderer.write();
    for (id, texture) in &drawing.textures {
        let whole = ImageDelta::full(texture.image.clone(), texture.options);
        renderer.update_texture(device, queue, *id, &whole);
    }
    let primitives = drawing.tessellated();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let buffers = renderer.update_buffers(device, queue, &mut encoder, &primitives, screen);
    let view = target.create_view(&wgpu::TextureViewDescriptor::default());
    // egui's colours are in gamma space, and so is the target.
    let [r, g, b, a] = if state.target_format.is_srgb() {
        Rgba::from(background).to_array()
    } else {
        background.to_normalized_gamma_f32()
    }
    .map(f64::from);
    let attachment = wgpu::RenderPassColorAttachment {
        view: &view,
        resolve_target: None,
        ops: wgpu::Operations {
            load: wgpu::LoadOp::Clear(wgpu::Color { r, g, b, a }),
            store: wgpu::StoreOp::Store,
        },
        depth_slice: None,
    };
    let pass = wgpu::RenderPassDescriptor { color_attachments: &[Some(attachment)], ..Default::default() };
    renderer.render(&mut encoder.begin_render_pass(&pass).forget_lifetime(), &primitives, screen);
    queue.submit(buffers.into_iter().chain([encoder.finish()]));
}

/// Reads the texture's pixels and removes the row padding.
fn read_back(state: &RenderState, texture: &wgpu::Texture) -> Result<RgbaImage> {
    let failed = |what: &dyn std::fmt::Display| Error::failure(format!("the graphics driver failed: {what}"));
    let (width, height) = (texture.width(), texture.height());
    let padded = (width * 4).next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
    let buffer = state.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("picture"),
        size: u64::from(padded) * u64::from(height),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = state.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let layout = wgpu::TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(padded), rows_per_image: None };
    encoder.copy_texture_to_buffer(
        texture.as_image_copy(),
        wgpu::TexelCopyBufferInfo { buffer: &buffer, layout },
        wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
    );
    let submission_index = Some(state.queue.submit([encoder.finish()]));
    let (sender, receiver) = channel();
    buffer.slice(..).map_async(wgpu::MapMode::Read, move |mapped| drop(sender.send(mapped)));
    state
        .device
        .poll(wgpu::PollType::Wait { submission_index, timeout: Some(PATIENCE) })
        .map_err(|error| failed(&error))?;
    receiver.recv().map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    let bytes = buffer.slice(..).get_mapped_range().map_err(|error| failed(&error))?;
    let swapped =
        matches!(state.target_format, wgpu::TextureFormat::Bgra8Unorm | wgpu::TextureFormat::Bgra8UnormSrgb);
    let rows = bytes.chunks_exact(padded as usize).flat_map(|row| row[..width as usize * 4].chunks_exact(4));
    let pixels = rows.flat_map(|pixel| match swapped {
        true => [pixel[2], pixel[1], pixel[0], u8::MAX],
        false => [pixel[0], pixel[1], pixel[2], u8::MAX],
    });
    RgbaImage::from_raw(width, height, pixels.collect()).ok_or_else(|| failed(&"too few pixels"))
}
