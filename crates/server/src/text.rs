//! Tokens as they come, as text that ends at a stop text.

use crate::job::{EndReason, Event, Failure, Figures};
use layerscope_engine::Tokenizer;
use layerscope_eval::{Likelihood, TokenLikelihood};
use std::sync::Arc;
use tokio::sync::mpsc::{Sender, UnboundedReceiver};

/// A piece of what a sequence yields.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// The tokens that came with it.
    pub(crate) tokens: Vec<u32>,
    /// What the model says of them, where that was asked for.
    pub(crate) likelihoods: Vec<(u32, TokenLikelihood)>,
    /// What it says of given tokens.
    pub(crate) forced: Vec<(u32, TokenLikelihood)>,
    pub(crate) scored: Vec<Likelihood>,
    pub(crate) taken_over: Option<usize>,
    pub(crate) end: Option<(EndReason, Figures)>,
}

/// What comes of one of a request's sequences.
pub(crate) type Update = (usize, Result<Piece, Failure>);

/// Follows a sequence until it ends or nobody listens; pieces of text go to `out`.
pub(crate) async fn follow(
    index: usize,
    tokenizer: Arc<Tokenizer>,
    mut events: UnboundedReceiver<Event>,
    stop: Vec<String>,
    out: Sender<Update>,
) {
    let mut decoded = tokenizer.stream(true);
    let mut stops = Stops::new(stop);
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = out.closed() => return,
        };
        let mut piece = Piece::default();
        let mut is_last = false;
        match event {
            None => {
                let _ = out.send((index, Err(Failure::Engine("the engine has ended".to_owned())))).await;
                return;
            }
            Some(Event::Failed(failure)) => {
                let _ = out.send((index, Err(failure))).await;
                return;
            }
            Some(Event::Started { taken_over }) => piece.taken_over = Some(taken_over),
            Some(Event::Forced(found)) => piece.forced = found,
            Some(Event::Scored(likelihood)) => piece.scored = vec![likelihood],
            Some(Event::Token { token, likelihood, figures }) => {
                piece.tokens = vec![token];
                piece.likelihoods = likelihood.into_iter().map(|likelihood| (token, likelihood)).collect();
                match decoded.push(token) {
                    Ok(text) => {
                        let (text, stopped) = stops.push(&text.unwrap_or_default());
                        piece.text = text;
                        if stopped {
                            piece.end = Some((EndReason::Stop, figures));
                            is_last = true;
                        }
                    }
                    Err(error) => {
                        let _ = out.send((index, Err(error.into()))).await;
                        return;
                    }
                }
            }
            Some(Event::Ended { reason, figures }) => {
                let rest = std::mem::replace(&mut decoded, tokenizer.stream(true)).finish();
                let (mut text, stopped) = stops.push(&rest.unwrap_or_default());
                if !stopped {
                    text += &stops.finish();
                }
                piece.text = text;
                piece.end = Some((if stopped { EndReason::Stop } else { reason }, figures));
                is_last = true;
            }
        }
        if out.send((index, Ok(piece))).await.is_err() || is_last {
            return;
        }
    }
}

/// Finds stop texts, and holds back what may be the beginning of one.
struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// The text that can be shown, and whether a stop text came.
    fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |stop: &String| {
            let longest = self.held.len().min(stop.len().saturating_sub(1));
            (1..=longest).rev().find(|&len| stop.is_char_boundary(len) && self.held.ends_with(&stop[..len]))
        };
        let held = self.stops.iter().filter_map(begins).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_before_the_first_stop_text_and_nothing_of_one_is_shown() {
        let mut stops = Stops::new(vec!["\n\n".to_owned(), "END".to_owned()]);
        assert_eq!(stops.push("a\n"), ("a".to_owned(), false));
        assert_eq!(stops.push("bE"), ("\nb".to_owned(), false));
        assert_eq!(stops.push("N"), (String::new(), false));
        assert_eq!(stops.push("é"), ("ENé".to_owned(), false));
        assert_eq!(stops.push("x\n\nyEND"), ("x".to_owned(), true));
        let mut stops = Stops::new(vec!["é!".to_owned()]);
        assert_eq!(stops.push("caf\u{e9}"), ("caf".to_owned(), false));
        assert_eq!(stops.finish(), "é");
        assert_eq!(Stops::new(vec![]).push("all"), ("all".to_owned(), false));
    }
}
