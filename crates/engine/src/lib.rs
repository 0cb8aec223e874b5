//! A hooked, config-driven decoder: weights, tokenizer, hook points, KV store, policies and generation.

mod adapter;
mod attention;
mod chooser;
mod config;
mod decoder;
mod depth;
mod device;
mod error;
mod family;
mod file;
mod generate;
mod guard;
mod hooks;
mod kv;
mod memory;
mod model;
mod pattern;
mod placement;
mod policy;
mod product;
mod repetition;
mod rows;
mod sampling;
mod session;
mod shapes;
mod tensor;
mod threads;
mod tokenizer;
pub mod training;
mod undefined;
mod weights;

pub use adapter::{Adapter, AdapterInfo, AdapterRows, AdapterTraining, HeldOutFigures, LowRank, Target};
pub use attention::{LayerAttention, LayerStatistics, RowGroup};
pub use chooser::{Choice, Chooser};
pub use config::{
    Activation, Experts, ModelConfig, NormKind, NormPlacement, QueryKeyNorm, RopeConfig, RopeFactors,
    RopeScaling,
};
pub use decoder::{Attend, Decoder, KeysValuesOf, Location, Pass, RowsOnDevice, SequenceRows};
pub use depth::Depth;
pub use device::{Device, DeviceChoice};
pub use error::{Error, ErrorKind, Result};
pub use file::write_file;
pub use generate::{
    GeneratedToken, Generation, GenerationEvent, GenerationSettings, Previous, generate, generate_after,
};
pub use guard::{guarded, is_guarded};
pub use hooks::{Hook, HookContext, HookPoint, Hooks, Observer, Site};
pub use kv::{KeyRange, KvBuffer, KvPrecision, KvStore};
pub use layerscope_kernels::matmul::ComputeType;
pub use memory::{MemoryNeed, available_memory, check as check_memory, logit_rows, readable_bytes};
pub use model::{
    Model, ModelAdapter, ModelFiles, ModelSource, OpenedModel, WeightType, folder_config, gguf_config,
};
pub use pattern::{PatternHeads, PatternText, PatternTile, TextPattern, TileRequest, UNSEEN};
pub use policy::{
    Anchors, Arrived, BLOCK, BlockPruning, CrossLayerKv, Cutoff, Ends, Eviction, FoundPattern, HeadPattern,
    HeadPatterns, HeadSet, HeadSetFile, Keep, LayerKv, LayerTokens, POLICIES, Policy, PolicyKind,
    PolicyRules, Pooling, PrefillPattern, PromptChunk, Pruning, QUERY_WINDOW, Reach, Retention,
    RevivalCounters, RunningSelection, Schedule, Selection, SequenceSetup, SinksAndWindow, StoredHead,
    TokenPruning, TransferCounters, UNIT, UNTRAINED, Visibility, ZERO_SHOT, caveats, names_a_file,
    policies_help, search_head_patterns,
};
pub use repetition::Repetition;
pub use rows::ResidualRows;
pub use sampling::{Sampler, Sampling, argmax};
pub use session::{BranchToken, Branches, Interrupt, Sees, Session, Turn, advance_together, check_interrupt};
pub use shapes::Shape;
pub use tensor::{DeviceTensor, Tensor, with_f32};
pub use threads::{
    choose_instructions, keep_freed_memory, one_pool, pin_threads, pool_for_several, return_freed_memory,
    use_threads,
};
pub use tokenizer::{Message, PromptText, StopTexts, TokenStream, Tokenizer};
pub use undefined::UndefinedFrom;
pub use weights::{
    Embedding, FileState, GgufArray, GgufFile, GgufValue, Linear, RandomWeights, SafetensorsFiles,
    ShapeWeights, Weight, WeightSource, WeightsPrecision, explain_bus_errors,
};
