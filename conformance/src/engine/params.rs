//! Transfer parameters as a router carries them: vLLM's keys, plus ours.

use lease_proto::{
    id::{Identity, RequestId},
    params::Parameters,
    time::Duration,
};
use serde_json::{Value, json};

/// A peer over these transports is reached by what is in our key, so there is no side channel to name.
pub(super) fn transfer_params(identity: &Identity, request: &str, blocks: &[u32], key: &str) -> Value {
    json!({"kv_transfer_params": {
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_block_ids": blocks,
        "remote_engine_id": identity.engine.to_string(),
        "remote_request_id": request,
        "remote_host": null,
        "remote_port": null,
        "tp_size": identity.ranks,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 0,
        "remote_blocks_expiry_time": null,
        "remote_registration_generation": null,
        "transfer_mode": "read",
        "kvlease": key,
    }})
}

/// What a reader needs of transfer parameters.
pub(super) struct Read {
    pub(super) request: String,
    pub(super) blocks: Vec<u32>,
    pub(super) key: String,
}

/// Reads transfer parameters, bare or inside `{"kv_transfer_params": …}`.
pub(super) fn read_params(value: &Value) -> Result<Read, String> {
    let params = value.get("kv_transfer_params").unwrap_or(value);
    let string = |key: &str| match params.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("{key} is not a string")),
        None if key == "kvlease" && names_side_channel(value) => {
            Err("kvlease is missing and a side channel is named: read these with --transport nixl --wire vllm".into())
        }
        None => Err(format!("{key} is missing: pass on what the prefill instance printed, unchanged")),
    };
    if params.get("do_remote_prefill") != Some(&Value::Bool(true)) {
        return Err("do_remote_prefill is not true: these parameters name nothing to read".into());
    }
    Ok(Read { request: string("remote_request_id")?, key: string("kvlease")?, blocks: blocks(params)? })
}

/// Whether transfer parameters say where their prefill instance answers for its ranks, as vLLM's do.
pub fn names_side_channel(params: &Value) -> bool {
    let params = params.get("kv_transfer_params").unwrap_or(params);
    ["remote_host", "remote_port"].iter().any(|key| params.get(key).is_some_and(|value| !value.is_null()))
}

fn blocks(params: &Value) -> Result<Vec<u32>, String> {
    let ids = params.get("remote_block_ids").and_then(Value::as_array);
    let ids = ids.and_then(|ids| ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Option<Vec<u32>>>());
    match ids {
        None => Err("remote_block_ids is not a list of numbers: nothing to read".into()),
        Some(ids) if ids.is_empty() => Err("remote_block_ids names no block: nothing to read".into()),
        Some(ids) => Ok(ids),
    }
}

/// The request id in transfer parameters that can be used.
///
/// # Errors
/// What is wrong with them.
pub fn params_request(params: &Value) -> Result<String, String> {
    let request = read_params(params)?.request;
    if request.is_empty() {
        return Err("remote_request_id is empty".into());
    }
    RequestId::try_from(request.as_str()).map_err(|error| error.to_string())?;
    with_params(params, |_| request)
}

/// By how much the holder of these parameters extends a lease.
pub fn params_extension(params: &Value) -> Option<Duration> {
    with_params(params, |parameters| parameters.extension).ok()
}

fn with_params<R>(params: &Value, f: impl FnOnce(&Parameters<'_>) -> R) -> Result<R, String> {
    let read = read_params(params)?;
    let mut buffer = vec![0; read.key.len().div_ceil(4) * 3];
    Parameters::from_text(&read.key, &mut buffer).map(|parameters| f(&parameters)).map_err(|error| error.to_string())
}
