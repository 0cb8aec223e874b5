//! `layerscope serve`: an OpenAI-compatible server.

use super::{api_key, engine};
use crate::args::ServeArguments;
use crate::interrupt::heeded;
use crate::{models, output, terminal};
use layerscope_engine::{Policy, Result};
use layerscope_server::{Event, Loaded, Options, PageFile, serve};
use std::process::ExitCode;
use std::time::Duration;

/// The viewer for browsers, where it is built in.
const PAGE: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

pub(crate) fn run(arguments: ServeArguments) -> Result<ExitCode> {
    let options = Options {
        host: arguments.host.clone(),
        port: arguments.port,
        name: arguments.name.clone(),
        api_key: api_key(arguments.api_key.as_ref()),
        allow_origins: arguments.allow_origins.clone(),
        exact: arguments.exact,
        metrics: arguments.metrics,
        max_sequences: arguments.max_sequences as usize,
        queue: arguments.queue as usize,
        kv_memory: arguments.kv_memory,
        default_max_tokens: arguments.default_max_tokens as usize,
        timeout: Duration::from_secs(arguments.timeout.into()),
        viewer: arguments.viewer.then(engine::viewer).transpose()?,
        page: PAGE,
    };
    let lets_viewers_in = arguments.viewer;
    let load = move || load(&arguments);
    heeded(|interrupt| {
        serve(options, load, interrupt, &|event| match event {
            Event::Listening { url } => {
                terminal::say(&format!("layerscope: listening on {url}"));
                if lets_viewers_in {
                    let address = url.trim_start_matches("http://");
                    terminal::say(&format!(
                        "layerscope: viewers connect by `layerscope view ws://{address}/RUN`"
                    ));
                    if !PAGE.is_empty() {
                        terminal::say(&format!(
                            "layerscope: or in a browser, http://{address}/viewer/?run=/RUN#key=KEY"
                        ));
                    }
                }
            }
            Event::Ready { id, kv_memory } => terminal::say(&format!(
                "layerscope: serving {id}, {} for keys and values; Ctrl-C stops",
                output::bytes(kv_memory as f64)
            )),
            Event::Stopping => {
                terminal::say("layerscope: stopping; what runs is finished, a second Ctrl-C ends it at once")
            }
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: &ServeArguments) -> Result<Loaded> {
    let device = models::device(arguments.model.device)?;
    let opened = models::open_to_generate(&arguments.model, &device, arguments.exact)?;
    let config = opened.config.clone();
    let mut policies: Vec<Policy> = vec![];
    for name in &arguments.policies {
        let policy = Policy::parse_for(name, &config)?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let need = models::memory_need(
        &opened,
        arguments.model.weights,
        &device,
        &arguments.kv,
        &vec![0; config.layers],
    )?;
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_kv(model, &arguments.kv)?;
    // Merged, an adapter leaves no model without it.
    let base = (arguments.adapter.adapter.is_some() && !arguments.adapter.merge).then(|| model.clone());
    let model = models::with_adapter(model, &arguments.adapter, &policies)?;
    if policies.is_empty() {
        let made_for = model.made_for().map(|made_for| made_for.policy.as_str());
        policies.push(Policy::parse_for(made_for.unwrap_or("full"), &config)?);
    }
    for caveat in model.caveats(&policies) {
        terminal::say(&format!("layerscope: {caveat}"));
    }
    Ok(Loaded { model, base, policies })
}
