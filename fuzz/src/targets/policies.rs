//! Names of policies, and what each would do with a prompt. An input is layers, prompt tokens and new tokens in ten bytes, then
//! names between commas.

use super::text;
use crate::Target;
use crate::mutate::{Random, bytes, one_in, text as words};
use layerscope_bench::{parse_lengths, split_policies};
use layerscope_engine::{Device, POLICIES, Policy, caveats};

/// Names parse back, and no policy keeps more than there is.
pub const TARGET: Target = Target { name: "policies", read, mutate, seeds };

const NUMBERS: usize = 10;
/// As many policies as are checked of a list.
const MOST_POLICIES: usize = 4;
/// As deep, and far longer, than any model, prompt and text.
const MOST_LAYERS: usize = 128;
const MOST_PROMPT_TOKENS: usize = 1 << 26;
const MOST_NEW_TOKENS: usize = 1 << 24;

fn read(input: &[u8]) {
    let Some((numbers, rest)) = input.split_first_chunk::<NUMBERS>() else { return };
    let Some(list) = text(rest) else { return };
    let number = |range: std::ops::Range<usize>| {
        numbers[range].iter().fold(0, |sum, &byte| (sum << 8) | usize::from(byte))
    };
    let layers = 1 + number(0..2) % MOST_LAYERS;
    let (prompt_len, decode_len) =
        (1 + number(2..6) % MOST_PROMPT_TOKENS, 1 + number(6..10) % MOST_NEW_TOKENS);
    let _ = parse_lengths(list);
    let policies: Vec<Policy> =
        split_policies(list).iter().filter_map(|name| Policy::parse(name, layers).ok()).collect();
    let _ = caveats(&policies);
    for policy in policies.iter().take(MOST_POLICIES) {
        check(policy, layers, prompt_len, decode_len);
    }
}

fn check(policy: &Policy, layers: usize, prompt_len: usize, decode_len: usize) {
    assert_eq!(
        Policy::parse(&policy.to_string(), layers).as_ref().ok(),
        Some(policy),
        "its name parses back"
    );
    let capacity = policy.capacity(prompt_len, decode_len);
    assert_eq!(capacity.len(), layers);
    assert!(
        capacity.iter().all(|&kept| kept <= prompt_len - 1 + decode_len),
        "{policy} keeps more than there is"
    );
    assert_eq!(policy.capacity_by_head(prompt_len, decode_len, 3).len(), layers);
    let held = policy.most_held(prompt_len, decode_len, &Device::Cpu);
    assert!(held.iter().zip(&capacity).all(|(held, kept)| held >= kept), "{policy} holds less than it keeps");
    assert!(policy.in_memory(prompt_len, decode_len, &Device::Cpu).len() >= layers);
    let full = Policy::full(layers).layer_tokens(prompt_len, decode_len);
    assert!(
        policy.layer_tokens(prompt_len, decode_len).block <= full.block,
        "{policy} works more than the full model"
    );
    let _ = policy.plan(prompt_len, &|tokens| tokens.to_string());
}

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const PARTS: [&str; 17] = [
        ",",
        ":",
        "+",
        "=",
        "-",
        "%",
        "bos",
        "+bos",
        "k",
        "1=50%",
        "+4=25%",
        "+64",
        "+sinks=4",
        "+mean",
        "+sync",
        "+read=0.5",
        "+swap=50%",
    ];
    let (numbers, rest) = input.split_first_chunk::<NUMBERS>()?;
    let mut numbers = numbers.to_vec();
    if one_in(3, random) {
        bytes::change(&mut numbers, random);
        numbers.resize(NUMBERS, 0);
    }
    let kinds = POLICIES.iter().map(|kind| kind.name);
    let parts: Vec<&str> = PARTS.into_iter().chain(kinds).collect();
    numbers.extend(words::changed(text(rest)?, &parts, random).into_bytes());
    Some(numbers)
}

fn seeds() -> Vec<Vec<u8>> {
    const NAMES: [&str; 15] = [
        "full",
        "speed:24,speed:24+bos+5+100-120",
        "selfonly:3,pop:4,swiftkv:2",
        "lazyllm",
        "lazyllm:3=50%+6=25%",
        "sliminfer,sliminfer+max",
        "sliminfer:4=2k+8=1k+mean+sync",
        "sliminfer:1=64+read=0.3+swap=0.5",
        "sliminfer:scaled,sliminfer:llama-3.1-8b",
        "streaming:1k",
        "minference:vertical=100+slash=2k,flexprefill:gamma=0.9+tau=0.2",
        "streaming:64+sinks=4",
        "keep:0-2+4.0-1+bos+window=64,speed:3+bos+keep:none+sinks=4",
        "512,1k,128k",
        "pop:9999999999999999999999",
    ];
    let numbers: [[u8; NUMBERS]; 3] = [
        [0, 29, 0, 0, 16, 0, 0, 0, 0, 127],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 7, 3, 255, 255, 255, 0, 0, 1, 0],
    ];
    let inputs =
        NAMES.iter().flat_map(|name| numbers.map(|numbers| [&numbers[..], name.as_bytes()].concat()));
    inputs.collect()
}
