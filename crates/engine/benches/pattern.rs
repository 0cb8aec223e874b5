//! Times of the attention pattern at 8,192 tokens of a model's file: running the text, then tiles of 256 × 256 cells at several zooms, of
//! one head and of the mean over heads. `cargo bench -p layerscope-engine --bench pattern -- MODEL.gguf`

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use layerscope_engine::{
    Device, Interrupt, Model, ModelSource, PatternHeads, PatternText, Policy, TextPattern, TileRequest,
    WeightsPrecision,
};
use std::time::Instant;

const ROWS: usize = 8_192;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let Some(path) = arguments.iter().find(|argument| argument.ends_with(".gguf")) else {
        return println!("give a model's file to measure with");
    };
    let rows = if quick { 256 } else { ROWS };
    let source = ModelSource::path(path);
    let model =
        Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(())).expect("a model");
    layerscope_engine::one_pool().expect("threads");
    let config = model.config();
    let tokens: Vec<u32> = (0..rows as u32).map(|i| 3 + i * 7_919 % (config.vocab as u32 - 3)).collect();
    let policy = Policy::full(config.layers);
    let text = PatternText { prompt: &tokens, continuation: &[], policy: &policy };
    let never = Interrupt::new(false);
    let start = Instant::now();
    let pattern = TextPattern::read(&model.decoder, text, &[], TextPattern::room(), &never, &mut |_| {})
        .expect("a text");
    let layers = pattern.layers().count();
    println!(
        "{}: {rows} tokens run in {:.1} s, {layers} layers kept",
        model.name,
        start.elapsed().as_secs_f64()
    );
    let time = |name: &str, request: &TileRequest| {
        let start = Instant::now();
        let tile = pattern.tile(request, &never).expect("a tile");
        let ms = start.elapsed().as_secs_f64() * 1e3;
        println!("{name:<58} {ms:>8.1} ms, {} × {} cells", tile.rows, tile.columns);
    };
    let mut layer = 0;
    for heads in [PatternHeads::One(0), PatternHeads::Mean] {
        for (what, size) in [("all", rows), ("a quarter", rows / 4), ("256 × 256 pairs", 256)] {
            // A layer whose sums are not known yet, then the same again.
            let cell = [(size / 256).max(1); 2];
            let (end, all) = (rows, rows - size);
            let request = TileRequest { layer, heads, rows: all..end, keys: 0..size, cell };
            time(&format!("{what}, {heads:?}, last rows and first keys"), &request);
            time(&format!("{what}, {heads:?}, sums of rows known"), &request);
            layer = (layer + 1) % config.layers;
        }
    }
    let heads = config.heads;
    let start = Instant::now();
    for head in 0..heads {
        let request = TileRequest {
            layer: config.layers - 1,
            heads: PatternHeads::One(head),
            rows: 0..rows,
            keys: 0..rows,
            cell: [rows / 64; 2],
        };
        pattern.tile(&request, &never).expect("a tile");
    }
    println!("{heads} heads of a layer, 64 × 64 cells each: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
}
