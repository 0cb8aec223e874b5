//! Text for messages: sizes, lists, similar names.

/// Bytes in powers of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    if power == 0 {
        return format!("{bytes} B");
    }
    format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32), units[power as usize])
}

/// The first `most` items, separated by commas, and the number of others.
pub(crate) fn list(items: &[String], most: usize) -> String {
    let shown = items[..items.len().min(most)].join(", ");
    match items.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Up to three of `names` that are similar to `word`, nearest first.
pub(crate) fn near<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let mut near: Vec<(f64, &str)> = names
        .into_iter()
        .map(|name| {
            let lower = name.to_lowercase();
            let last = lower.rsplit('/').next().unwrap_or(&lower);
            let contained = if word.len() >= 3 && lower.contains(&word) { 1.0 } else { 0.0 };
            let alike = strsim::jaro_winkler(&word, &lower).max(strsim::jaro_winkler(&word, last));
            (alike.max(contained), name)
        })
        .filter(|(score, _)| *score >= 0.85)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        let items: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(list(&items, 3), "a, b, c");
        assert_eq!(list(&items, 2), "a, b and 1 more");
    }

    #[test]
    fn near_names_are_found_by_spelling_and_by_part() {
        let names = ["gemma3:270m", "Qwen/Qwen3-0.6B", "llama3.2:1b"];
        assert_eq!(near("gema3:270m", names), ["gemma3:270m"]);
        assert_eq!(near("qwen3", names), ["Qwen/Qwen3-0.6B"]);
        assert!(near("zzz", names).is_empty());
    }
}
