//! Tokens as they come, as text that ends at a stop text.

use crate::job::{EndReason, Event, Failure, Figures};
use layerscope_engine::{StopTexts, Tokenizer};
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
    let mut stops = StopTexts::new(stop);
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
