//! The model and its settings.

use super::{Place, adapter};
use crate::document::{Cell, Element, Table, column};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let (manifest, model) = (&place.run.manifest, &place.run.manifest.model);
    let text = |text: String| Cell::Text(text);
    let mut rows = vec![
        ("model", Cell::Foreign(model.name.clone())),
        ("architecture", Cell::Foreign(model.architecture.clone())),
        ("layers L", Cell::count(model.layers)),
        ("query heads H", Cell::count(model.heads)),
        ("key/value heads", Cell::count(model.kv_heads)),
        ("width of a head", Cell::count(model.head_dim)),
        ("width of the residual stream", Cell::count(model.hidden)),
        ("width of the feed-forward network", Cell::count(model.feed_forward)),
        ("vocabulary, tokens", Cell::count(model.vocab)),
        ("longest context, tokens", Cell::count(model.context)),
        ("sliding-window layers", windows(place)),
    ];
    rows.push((
        "token at position 0",
        match &model.bos {
            Some(bos) => Cell::Foreign(format!("{} (id {})", bos.text, bos.id)),
            None => text("differs from prompt to prompt".into()),
        },
    ));
    rows.extend([
        ("weights", Cell::Foreign(manifest.weights.clone())),
        ("bytes of one K or V element", Cell::count(manifest.kv_element_bytes)),
        ("device", Cell::Foreign(manifest.device.clone())),
        ("prompts recorded", Cell::count(place.run.prompts.len())),
        ("prompts that failed", Cell::count(manifest.prompts.failed.len())),
        (
            "prompt tokens, fewest",
            Cell::count(place.run.prompts.iter().map(|prompt| prompt.p).min().unwrap_or(0)),
        ),
        (
            "prompt tokens, most",
            Cell::count(place.run.prompts.iter().map(|prompt| prompt.p).max().unwrap_or(0)),
        ),
        ("decode steps, at most", Cell::count(manifest.settings.max_new_tokens)),
        (
            "KL(f32 weights ‖ weights as run), nats",
            match manifest.native_kl {
                Some(kl) => Cell::figure(kl),
                None => text("none: run in f32".into()),
            },
        ),
    ]);
    rows.extend(model.adapter.iter().flat_map(adapter::rows));
    vec![Element::Table(Table {
        id: place.id("model-table"),
        caption: "The model and how it was run".into(),
        columns: vec![column("what", ""), column("is", "")],
        rows: rows.into_iter().map(|(name, cell)| vec![Cell::Text(name.into()), cell]).collect(),
    })]
}

fn windows(place: &Place<'_>) -> Cell {
    let model = &place.run.manifest.model;
    if model.windowed_layers.is_empty() {
        return Cell::Text("none".into());
    }
    let layers: Vec<String> = model.windowed_layers.iter().map(usize::to_string).collect();
    let window = model.window.map_or(String::new(), |window| format!(" ({window} tokens)"));
    Cell::Text(format!("{}{window}; their masses are over the keys that they can see", layers.join(", ")))
}
