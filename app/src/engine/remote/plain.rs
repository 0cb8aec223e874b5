//! Forms in which values cross the pipe whose own form is for files, or that hold references.

/// Bytes in one piece.
pub(in crate::engine) mod bytes {
    use serde::de::{Deserializer, Visitor};
    use serde::ser::Serializer;
    use std::fmt;

    pub(in crate::engine) fn serialize<S: Serializer>(
        bytes: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// A model's source. One that is part of the program crosses by its name; it arrives as a path of that name, which the other side
/// resolves.
pub(in crate::engine) mod source {
    use layerscope_engine::{ModelFiles, ModelSource};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::path::PathBuf;

    #[derive(Serialize, Deserialize)]
    struct Source {
        name: String,
        path: Option<PathBuf>,
        architecture: Option<String>,
        adapter: Option<PathBuf>,
    }

    pub(in crate::engine) fn serialize<S: Serializer>(
        source: &ModelSource,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let path = match &source.files {
            ModelFiles::Path(path) => Some(path.clone()),
            ModelFiles::Embedded(_) => None,
        };
        let ModelSource { name, architecture, adapter, .. } = source.clone();
        Source { name, path, architecture, adapter }.serialize(serializer)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ModelSource, D::Error> {
        let Source { name, path, architecture, adapter } = Source::deserialize(deserializer)?;
        let files = ModelFiles::Path(path.unwrap_or_else(|| name.clone().into()));
        Ok(ModelSource { name, files, architecture, adapter })
    }
}

/// The same, where there may be none.
pub(in crate::engine) mod source_if_any {
    use layerscope_engine::ModelSource;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Sent<'a>(#[serde(with = "super::source")] &'a ModelSource);
    #[derive(Deserialize)]
    struct Come(#[serde(with = "super::source")] ModelSource);

    pub(in crate::engine) fn serialize<S: Serializer>(
        source: &Option<ModelSource>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        source.as_ref().map(Sent).serialize(serializer)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ModelSource>, D::Error> {
        Ok(Option::<Come>::deserialize(deserializer)?.map(|come| come.0))
    }
}

/// A removed span.
pub(in crate::engine) mod span {
    use layerscope_diagnostics::record::{Divergence, SpanMasses, SpanRecord, SpanRow};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Span {
        prompt_id: String,
        first: usize,
        end: usize,
        text: String,
        layers: Vec<Row>,
    }

    /// Layer, divergence, mass at the layer, masses above it, and whether the answer was found.
    type Row = (usize, [f64; 3], f64, [f64; 5], Option<bool>);

    pub(in crate::engine) fn serialize<S: Serializer>(
        record: &SpanRecord,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let SpanRecord { prompt_id, first, end, text, layers } = record.clone();
        let row = |row: SpanRow| {
            let (d, m) = (row.divergence, row.masses);
            let masses = [m.span_full, m.rest_full, m.bos_after, m.rest_after, m.decode_after];
            (row.layer, [d.kl, d.top1, d.dnll], row.decode_mass, masses, row.found)
        };
        Span { prompt_id, first, end, text, layers: layers.into_iter().map(row).collect() }
            .serialize(serializer)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SpanRecord, D::Error> {
        let Span { prompt_id, first, end, text, layers } = Span::deserialize(deserializer)?;
        let row = |(layer, [kl, top1, dnll], decode_mass, masses, found): Row| {
            let [span_full, rest_full, bos_after, rest_after, decode_after] = masses;
            SpanRow {
                layer,
                divergence: Divergence { kl, top1, dnll },
                decode_mass,
                masses: SpanMasses { span_full, rest_full, bos_after, rest_after, decode_after },
                found,
            }
        };
        Ok(SpanRecord { prompt_id, first, end, text, layers: layers.into_iter().map(row).collect() })
    }
}

/// A map of patches.
pub(in crate::engine) mod patches {
    use layerscope_diagnostics::patching::{
        PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt,
    };
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    #[derive(Serialize, Deserialize)]
    struct Prompt {
        id: String,
        tokens: Vec<PatchToken>,
        next: PatchToken,
        figures: PatchFigures,
    }

    #[derive(Serialize, Deserialize)]
    struct Map {
        asked: (PatchSite, PatchDirection, PatchMetric),
        prompts: [Prompt; 2],
        answers: [PatchToken; 2],
        layers: Vec<usize>,
        columns: Vec<usize>,
        head_positions: Vec<usize>,
        cells: Vec<Option<PatchFigures>>,
    }

    pub(in crate::engine) fn serialize<S: Serializer>(
        map: &Arc<PatchMap>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let map = PatchMap::clone(map);
        let prompts = [map.clean, map.corrupted].map(|PatchedPrompt { id, tokens, next, figures }| Prompt {
            id,
            tokens: tokens.to_vec(),
            next,
            figures,
        });
        let plain = Map {
            asked: (map.site, map.direction, map.metric),
            prompts,
            answers: [map.answer, map.wrong],
            layers: map.layers,
            columns: map.columns,
            head_positions: map.head_positions,
            cells: map.cells,
        };
        plain.serialize(serializer)
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<PatchMap>, D::Error> {
        let Map { asked, prompts, answers, layers, columns, head_positions, cells } =
            Map::deserialize(deserializer)?;
        let (site, direction, metric) = asked;
        let [clean, corrupted] = prompts.map(|Prompt { id, tokens, next, figures }| PatchedPrompt {
            id,
            tokens: tokens.into(),
            next,
            figures,
        });
        let [answer, wrong] = answers;
        Ok(Arc::new(PatchMap {
            site,
            direction,
            metric,
            clean,
            corrupted,
            answer,
            wrong,
            layers,
            columns,
            head_positions,
            cells,
        }))
    }
}
