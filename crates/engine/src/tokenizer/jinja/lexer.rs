//! A template's source as tokens, with the white space of `trim_blocks` and `lstrip_blocks`.

use super::{Result, broken};

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text between tags.
    Text(String),
    /// `{{`
    OutputStart,
    /// `}}`
    OutputEnd,
    /// `{%`
    TagStart,
    /// `%}`
    TagEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    /// An operator or a bracket.
    Sign(&'static str),
    /// The end of the template.
    End,
}

impl std::fmt::Display for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => formatter.write_str("text"),
            Self::OutputStart => formatter.write_str("{{"),
            Self::OutputEnd => formatter.write_str("}}"),
            Self::TagStart => formatter.write_str("{%"),
            Self::TagEnd => formatter.write_str("%}"),
            Self::Name(name) => formatter.write_str(name),
            Self::Str(text) => write!(formatter, "{text:?}"),
            Self::Int(number) => write!(formatter, "{number}"),
            Self::Float(number) => write!(formatter, "{number}"),
            Self::Sign(sign) => formatter.write_str(sign),
            Self::End => formatter.write_str("the end of the template"),
        }
    }
}

/// Longer ones first, so that `**` is not read as two `*`.
const SIGNS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",",
];

/// Bytes of a name, so that to look one up is a step.
const LONGEST_NAME: usize = 256;

/// White space as Python's `str.isspace` has it.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// The tokens of `source`, each with its line, from 1; the last is [`Token::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, tokens: Vec::new() };
    while lexer.at < source.len() {
        lexer.text_and_tag().map_err(|failure| {
            let line = lexer.line_of(lexer.at);
            failure.at(line)
        })?;
    }
    let line = lexer.line_of(lexer.at);
    lexer.tokens.push((Token::End, line));
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    /// Byte that is next.
    at: usize,
    /// Line of byte `counted`.
    line: usize,
    counted: usize,
    tokens: Vec<(Token, usize)>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line_of(&mut self, at: usize) -> usize {
        self.line += self.source[self.counted..at].matches('\n').count();
        self.counted = at;
        self.line
    }

    fn push(&mut self, token: Token) {
        let line = self.line_of(self.at);
        self.tokens.push((token, line));
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.to_owned()));
        }
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_space).len();
    }

    /// Whether a tag at the next byte stands at the start of a line, where nothing is between.
    fn starts_line(&self) -> bool {
        self.at == 0 || self.source[..self.at].ends_with('\n')
    }

    /// Reads up to the next tag, and that tag.
    fn text_and_tag(&mut self) -> Result<()> {
        let rest = self.rest();
        let starts_line = self.starts_line();
        let tag = rest
            .match_indices('{')
            .map(|(at, _)| at)
            .find(|&at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let Some(tag) = tag else {
            self.push_text(rest);
            self.at = self.source.len();
            return Ok(());
        };
        let kind = rest.as_bytes()[tag + 1];
        let sign = rest.as_bytes().get(tag + 2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
        self.push_text(before_tag(&rest[..tag], sign, kind != b'{', starts_line));
        self.at += tag;
        let start = match kind {
            b'{' => Token::OutputStart,
            _ => Token::TagStart,
        };
        self.at += 2 + usize::from(sign.is_some());
        match kind {
            b'#' => self.comment(),
            b'%' if self.raw()? => Ok(()),
            _ => {
                self.push(start.clone());
                self.expression(start)
            }
        }
    }

    fn comment(&mut self) -> Result<()> {
        let rest = self.rest();
        let end = rest.find("#}").ok_or_else(|| broken("a comment does not end"))?;
        let sign = rest[..end].bytes().next_back();
        self.at += end + 2;
        self.after_tag(sign);
        Ok(())
    }

    /// Skips the white space that a tag swallows, whose end has `sign` before it.
    fn after_tag(&mut self, sign: Option<u8>) {
        match sign {
            Some(b'-') => self.skip_space(),
            Some(b'+') => {}
            _ if self.rest().starts_with('\n') => self.at += 1,
            _ => {}
        }
    }

    /// Reads `{% raw %}…{% endraw %}` where the tag whose inside is next is that.
    fn raw(&mut self) -> Result<bool> {
        let Some((end, sign)) = keyword_tag(self.rest(), "raw") else {
            return Ok(false);
        };
        self.at += end;
        if sign == Some(b'-') {
            self.skip_space();
        }
        let starts_line = self.starts_line();
        let rest = self.rest();
        for (tag, _) in rest.match_indices("{%") {
            let inside = &rest[tag + 2..];
            let left = inside.bytes().next().filter(|sign| matches!(sign, b'-' | b'+'));
            let inside = &inside[usize::from(left.is_some())..];
            if let Some((end, right)) = keyword_tag(inside, "endraw") {
                self.push_text(before_tag(&rest[..tag], left, true, starts_line));
                self.at += tag + 2 + usize::from(left.is_some()) + end;
                self.after_tag(right);
                return Ok(true);
            }
        }
        Err(broken("a raw block does not end"))
    }

    /// Reads the tokens of a tag up to its end.
    fn expression(&mut self, start: Token) -> Result<()> {
        let (ends, end) = match start {
            Token::OutputStart => (["-}}", "}}", "}}"], Token::OutputEnd),
            _ => (["-%}", "+%}", "%}"], Token::TagEnd),
        };
        let mut open = Vec::new();
        loop {
            self.skip_space();
            let rest = self.rest();
            if open.is_empty()
                && let Some(found) = ends.iter().find(|end| rest.starts_with(**end))
            {
                self.push(end.clone());
                self.at += found.len();
                match end {
                    Token::OutputEnd if !found.starts_with('-') => {}
                    _ => self.after_tag(found.bytes().next()),
                }
                return Ok(());
            }
            let Some(first) = rest.chars().next() else {
                return Err(broken("a tag does not end"));
            };
            let (token, length) = match first {
                '0'..='9' => number(rest)?,
                '\'' | '"' => string(rest)?,
                _ if first == '_' || first.is_alphabetic() => {
                    let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                    if end > LONGEST_NAME {
                        return Err(broken(format!("a name has more than {LONGEST_NAME} bytes")));
                    }
                    (Token::Name(rest[..end].to_owned()), end)
                }
                _ => {
                    let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                    let sign = sign.ok_or_else(|| broken(format!("a tag has {first:?}")))?;
                    (Token::Sign(sign), sign.len())
                }
            };
            match token {
                Token::Sign("(") => open.push(")"),
                Token::Sign("[") => open.push("]"),
                Token::Sign("{") => open.push("}"),
                Token::Sign(sign @ (")" | "]" | "}")) if open.pop() != Some(sign) => {
                    return Err(broken(format!("{sign} closes nothing")));
                }
                _ => {}
            }
            self.push(token);
            self.at += length;
        }
    }
}

/// What is kept of the text before a tag.
fn before_tag(text: &str, sign: Option<u8>, is_block: bool, starts_line: bool) -> &str {
    if sign == Some(b'-') {
        return text.trim_end_matches(is_space);
    }
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let alone = (line > 0 || starts_line) && text[line..].chars().all(is_space);
    if sign.is_none() && is_block && alone { &text[..line] } else { text }
}

/// The length of `keyword %}` at the start of a tag's inside, and the sign before its end.
fn keyword_tag(inside: &str, keyword: &str) -> Option<(usize, Option<u8>)> {
    let rest = inside.trim_start_matches(is_space).strip_prefix(keyword)?.trim_start_matches(is_space);
    let sign = rest.bytes().next().filter(|sign| matches!(sign, b'-' | b'+'));
    let rest = rest[usize::from(sign.is_some())..].strip_prefix("%}")?;
    Some((inside.len() - rest.len(), sign))
}

/// The number at the start of `rest`, and its length.
fn number(rest: &str) -> Result<(Token, usize)> {
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
    let radix = match rest.as_bytes().get(1) {
        Some(b'x' | b'X') if rest.starts_with('0') => 16,
        Some(b'o' | b'O') if rest.starts_with('0') => 8,
        Some(b'b' | b'B') if rest.starts_with('0') => 2,
        _ => 10,
    };
    let too_large = |text: &str| broken(format!("the number {text} cannot be read"));
    if radix != 10 {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let number = i64::from_str_radix(&rest[2..end].replace('_', ""), radix);
        return Ok((Token::Int(number.map_err(|_| too_large(&rest[..end]))?), end));
    }
    let mut end = digits(rest);
    let mut is_float = false;
    let fraction = rest[end..].strip_prefix('.').map_or(0, digits);
    if fraction > 0 && rest.as_bytes()[end + 1] != b'_' {
        end += 1 + fraction;
        is_float = true;
    }
    if let Some(exponent) = rest[end..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            end = rest.len() - unsigned.len() + digits(unsigned);
            is_float = true;
        }
    }
    let text = rest[..end].replace('_', "");
    let token = match is_float {
        true => text.parse().map(Token::Float).ok(),
        false => text.parse().map(Token::Int).ok(),
    };
    Ok((token.ok_or_else(|| too_large(&rest[..end]))?, end))
}

/// The text at the start of `rest`, which is a quote, with Python's escapes resolved; and the length of its literal.
fn string(rest: &str) -> Result<(Token, usize)> {
    let mut characters = rest.char_indices();
    let quote = characters.next().map(|(_, quote)| quote);
    let mut text = String::new();
    while let Some((at, character)) = characters.next() {
        if Some(character) == quote {
            return Ok((Token::Str(text), at + 1));
        }
        if character != '\\' {
            text.push(character);
            continue;
        }
        let Some((at, escaped)) = characters.next() else { break };
        let coded = |digits: usize| -> Result<char> {
            let code = rest.get(at + 1..at + 1 + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
            code.and_then(char::from_u32).ok_or_else(|| broken("a text has a damaged escape"))
        };
        match escaped {
            '\n' => {}
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'v' => text.push('\x0b'),
            '\\' | '\'' | '"' => text.push(escaped),
            '0'..='7' => {
                let octal = &rest[at..];
                let length = octal.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                let code = u32::from_str_radix(&octal[..length], 8).ok().and_then(char::from_u32);
                text.push(code.ok_or_else(|| broken("a text has a damaged escape"))?);
                characters.by_ref().take(length - 1).for_each(drop);
            }
            'x' | 'u' | 'U' => {
                let digits = match escaped {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                text.push(coded(digits)?);
                characters.by_ref().take(digits).for_each(drop);
            }
            'N' => return Err(broken("a text has \\N, which is not supported")),
            _ => text.extend(['\\', escaped]),
        }
    }
    Err(broken("a text does not end"))
}
