//! Ascending numbers as text: `0,5,10-20`.

/// The text of ascending numbers.
pub fn text(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((run.first()?, run.last()?)));
    let parts =
        runs.map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    parts.collect::<Vec<_>>().join(",")
}

/// The numbers of such a text; `None` where they do not ascend or one is not below `most`.
pub(crate) fn parse(text: &str, most: usize) -> Option<Vec<usize>> {
    let mut numbers: Vec<usize> = vec![];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= most || numbers.last().is_some_and(|&before| before >= first) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        for numbers in [vec![0], vec![0, 1, 2], vec![1, 3, 4, 9], vec![5, 7]] {
            assert_eq!(parse(&text(&numbers), 10), Some(numbers));
        }
        assert_eq!(text(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
        assert_eq!(text(&[]), "");
        for bad in ["", "3,2", "0-10", "2-1", "1,1", "-1", "0-", "99999999999999999999", "0-2,2"] {
            assert_eq!(parse(bad, 10), None, "{bad}");
        }
    }
}
