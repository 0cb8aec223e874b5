//! The viewer as a page of a browser.

/// The browser calls this once the page has loaded.
fn main() {
    #[cfg(target_arch = "wasm32")]
    layerscope_app::web::start();
}
