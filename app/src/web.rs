//! The viewer in a page of a browser, which `layerscope serve --viewer` serves, with the server's engine.
//!
//! The page's address says what to show: `/viewer?run=FOLDER&view=map&theme=light#key=KEY`. Browsers do not send what follows `#` to a
//! server; the key is removed from the address at once, and kept until the tab is closed.

mod reader;

use crate::engine::remote::Pipes;
use crate::state::View;
use crate::viewer::{Host, Launch, Open, SeenModels, Viewer};
use crate::window::Window;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use eframe::egui::Theme;
use layerscope_engine::{DeviceChoice, Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Blob, HtmlAnchorElement, HtmlCanvasElement, Url, UrlSearchParams};

/// Path of the server's WebSocket for viewers.
const ENGINE: &str = "/viewer/engine";
/// Under which name the browser keeps the key.
const KEY: &str = "layerscope-key";
/// The name that a server chooses among those offered for the connection.
const PROTOCOL: &str = "layerscope";

/// Shows the viewer in the page's canvas.
pub fn start() {
    wasm_bindgen_futures::spawn_local(async {
        if let Err(problem) = show().await {
            say(&said(problem));
        }
    });
}

async fn show() -> std::result::Result<(), JsValue> {
    let window = web_sys::window().ok_or("there is no window")?;
    let document = window.document().ok_or("there is no page")?;
    let page = document.clone();
    let canvas = document.get_element_by_id("viewer").ok_or("the page has no canvas")?;
    let canvas: HtmlCanvasElement = canvas.dyn_into().map_err(|_| "the page has no canvas")?;
    let launch = launch(&window)?;
    let beneath = canvas.clone();
    let create =
        move |creation: &eframe::CreationContext<'_>| -> std::result::Result<Box<dyn eframe::App>, _> {
            reader::offer(&document, &beneath, &creation.egui_ctx).map_err(said)?;
            let remembered = creation.storage.and_then(|storage| eframe::get_value(storage, eframe::APP_KEY));
            let viewer = Viewer::new(&creation.egui_ctx, launch, remembered.unwrap_or_default());
            Ok(Box::new(Window { viewer }))
        };
    eframe::WebRunner::new().start(canvas, eframe::WebOptions::default(), Box::new(create)).await?;
    if let Some(loading) = page.get_element_by_id("loading") {
        loading.remove();
    }
    Ok(())
}

/// What a browser says of a failure.
fn said(problem: JsValue) -> String {
    problem.as_string().unwrap_or_else(|| format!("{problem:?}"))
}

/// What the page's address says.
fn launch(window: &web_sys::Window) -> std::result::Result<Launch, JsValue> {
    let location = window.location();
    let said = UrlSearchParams::new_with_str(&location.search()?)?;
    let host = location.host()?;
    let scheme = if location.protocol()? == "https:" { "wss" } else { "ws" };
    let url = format!("{scheme}://{host}{ENGINE}");
    let mut protocols = vec![PROTOCOL.to_owned()];
    if let Some(key) = key(window, &host)? {
        protocols.push(format!("key.{}", BASE64_URL_SAFE_NO_PAD.encode(key)));
    }
    let view = |name: String| View::ALL.into_iter().find(|view| view.name().eq_ignore_ascii_case(&name));
    Ok(Launch {
        open: said.get("run").map_or(Open::Nothing, |run| Open::Path(PathBuf::from(run))),
        models: vec![],
        model_of_runs: None,
        seen: SeenModels::default(),
        runs_folder: PathBuf::new(),
        view: said.get("view").and_then(view),
        theme: match said.get("theme").as_deref() {
            Some("light") => Some(Theme::Light),
            Some("dark") => Some(Theme::Dark),
            _ => None,
        },
        drawn_in_software: false,
        device: DeviceChoice::default(),
        host: Some(Host { name: host, reach: Arc::new(move || Pipes::open(&url, &protocols)) }),
    })
}

/// The server's key: of the address, that of an earlier page of this tab, or what the user types.
fn key(window: &web_sys::Window, host: &str) -> std::result::Result<Option<String>, JsValue> {
    let location = window.location();
    let of_page = UrlSearchParams::new_with_str(location.hash()?.trim_start_matches('#'))?.get("key");
    if of_page.is_some() {
        let address = location.pathname()? + &location.search()?;
        window.history()?.replace_state_with_url(&JsValue::NULL, "", Some(&address))?;
    }
    let kept = window.session_storage()?;
    let earlier = || kept.as_ref().and_then(|kept| kept.get_item(KEY).ok().flatten());
    let ask = || window.prompt_with_message(&format!("The API key of {host}")).ok().flatten();
    let key = of_page.or_else(earlier).or_else(ask).filter(|key| !key.is_empty());
    if let (Some(kept), Some(key)) = (&kept, &key) {
        kept.set_item(KEY, key)?;
    }
    Ok(key)
}

/// Says in the page why there is no viewer.
fn say(problem: &str) {
    let document = web_sys::window().and_then(|window| window.document());
    if let Some(place) = document.and_then(|document| document.get_element_by_id("loading")) {
        place.set_text_content(Some(&format!("The viewer cannot be shown: {problem}")));
    }
}

/// Marks the page with what the viewer is at, for programs that operate it: whether it waits, the cutoff, and tokens generated.
pub(crate) fn mark(viewer: &Viewer) {
    let Some(body) = web_sys::window().and_then(|window| window.document()?.body()) else { return };
    let tokens: usize = viewer.live().sides.iter().map(|side| side.tokens.len()).sum();
    for (name, state) in [
        ("data-viewer", (if viewer.is_waiting() { "waiting" } else { "ready" }).to_owned()),
        ("data-cutoff", viewer.state().cutoff.to_string()),
        ("data-tokens", tokens.to_string()),
        ("data-problem", viewer.errors().next().unwrap_or_default().to_owned()),
    ] {
        if body.get_attribute(name).as_deref() != Some(&state) {
            let _ = body.set_attribute(name, &state);
        }
    }
}

/// Gives a file to the browser as a download.
///
/// # Errors
/// [`Error::Failure`] where the browser takes none.
pub(crate) fn download(name: &str, bytes: &[u8]) -> Result<()> {
    let give = || -> std::result::Result<(), JsValue> {
        let document = web_sys::window().and_then(|window| window.document()).ok_or("there is no page")?;
        let parts = js_sys::Array::of1(&js_sys::Uint8Array::from(bytes));
        let url = Url::create_object_url_with_blob(&Blob::new_with_u8_array_sequence(&parts)?)?;
        let link: HtmlAnchorElement = document.create_element("a")?.unchecked_into();
        link.set_href(&url);
        link.set_download(name);
        link.click();
        Url::revoke_object_url(&url)
    };
    give().map_err(|_| Error::failure(format!("the browser does not take {name}")))
}
