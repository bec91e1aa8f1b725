//! vLLM's transfer parameters, as its scheduler prints them and as its workers take them.

use lease_proto::{
    id::{EngineId, RequestId},
    wire::vllm::check_id,
};
use serde_json::{Value, json};

/// Tokens of a block.
pub(super) const BLOCK_SIZE: u32 = 16;
/// Most blocks of a request: a million tokens.
const MOST_BLOCKS: usize = 65_536;

/// Where a prefill instance's blocks are, and how to ask for their layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) request: RequestId,
    pub(super) engine: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// How many ranks hold the blocks, under the same ids.
    pub(super) tp: u32,
    pub(super) blocks: Vec<u64>,
    /// Another number stands for another life of the engine.
    pub(super) generation: u64,
}

impl Remote {
    /// As vLLM's scheduler writes it.
    pub(super) fn to_params(&self) -> Value {
        let tokens = self.blocks.len().saturating_mul(BLOCK_SIZE as usize);
        json!({"kv_transfer_params": {
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [self.blocks],
            "remote_engine_id": self.engine,
            "remote_request_id": self.request.to_string(),
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": null,
            "remote_registration_generation": self.generation,
            "transfer_mode": "pull",
        }})
    }

    /// Reads transfer parameters, bare or inside `{"kv_transfer_params": …}`; unknown keys are passed over, as vLLM does.
    ///
    /// # Errors
    /// What is missing or cannot be.
    pub(super) fn from_params(value: &Value) -> Result<Self, String> {
        let params = value.get("kv_transfer_params").unwrap_or(value);
        if params.get("do_remote_prefill") != Some(&Value::Bool(true)) {
            return Err("do_remote_prefill is not true: these parameters name nothing to read".into());
        }
        for (key, only) in [("dcp_size", 1), ("pp_size", 1)] {
            if number(params, key)?.is_some_and(|got| got != only) {
                return Err(format!("{key} is not {only}: only tensor parallel ranks can be read from"));
            }
        }
        match params.get("transfer_mode") {
            None | Some(Value::Null) => {}
            Some(Value::String(mode)) if mode == "pull" => {}
            Some(other) => return Err(format!("transfer_mode is {other}: expected \"pull\", where the decode instance reads")),
        }
        let id = text(params, "remote_request_id")?;
        if check_id(id.as_bytes()).is_err() {
            return Err("remote_request_id holds a comma, or is HB or PUSH_REG: vLLM's wire carries no such id".into());
        }
        let engine = text(params, "remote_engine_id")?.to_owned();
        EngineId::try_from(engine.as_str()).map_err(|error| format!("remote_engine_id: {error}"))?;
        let in_range = |key, got: u64, most: u32| match u32::try_from(got) {
            Ok(got) if (1..=most).contains(&got) => Ok(got),
            _ => Err(format!("{key} is {got}, expected 1 to {most}")),
        };
        let port = in_range("remote_port", needed(params, "remote_port")?, u16::MAX.into())?;
        Ok(Self {
            request: RequestId::try_from(id).map_err(|error| format!("remote_request_id: {error}"))?,
            engine,
            host: text(params, "remote_host")?.to_owned(),
            port: u16::try_from(port).unwrap_or(u16::MAX),
            tp: in_range("tp_size", needed(params, "tp_size")?, lease_proto::topology::MAX_SIZE)?,
            blocks: blocks(params)?,
            generation: number(params, "remote_registration_generation")?.unwrap_or(0),
        })
    }
}

/// The request id in vLLM's transfer parameters, if they can be used.
///
/// # Errors
/// What is wrong with them.
pub fn request(params: &Value) -> Result<String, String> {
    Remote::from_params(params).map(|remote| remote.request.to_string())
}

fn missing(key: &str) -> String {
    format!("{key} is missing: pass on what the prefill instance printed, unchanged")
}

fn text<'v>(params: &'v Value, key: &str) -> Result<&'v str, String> {
    match params.get(key) {
        Some(Value::String(text)) if text.is_empty() => Err(format!("{key} is empty")),
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(missing(key)),
        Some(_) => Err(format!("{key} is not a string")),
    }
}

fn number(params: &Value, key: &str) -> Result<Option<u64>, String> {
    match params.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| format!("{key} is {value}, expected a number")),
    }
}

fn needed(params: &Value, key: &str) -> Result<u64, String> {
    number(params, key)?.ok_or_else(|| missing(key))
}

/// One list for each KV cache group: here there is one group.
fn blocks(params: &Value) -> Result<Vec<u64>, String> {
    let groups = params.get("remote_block_ids").ok_or_else(|| missing("remote_block_ids"))?;
    let ids = match groups.as_array().map(Vec::as_slice) {
        Some([group]) => group.as_array().and_then(|ids| ids.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()),
        Some([Value::Array(_), _, ..]) => return Err("remote_block_ids has several KV cache groups, expected one".into()),
        _ => None,
    };
    match ids {
        None => Err("remote_block_ids is not a list with a list of numbers: nothing to read".into()),
        Some(ids) if ids.is_empty() => Err("remote_block_ids names no block: nothing to read".into()),
        Some(ids) if ids.len() > MOST_BLOCKS => {
            Err(format!("remote_block_ids names {} blocks, expected at most {MOST_BLOCKS}", ids.len()))
        }
        Some(ids) => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        Remote {
            request: RequestId::try_from("cmpl-1").unwrap(),
            engine: "p".into(),
            host: "127.0.0.1".into(),
            port: 5711,
            tp: 2,
            blocks: vec![63, 62, 61],
            generation: 1,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let params = remote().to_params();
        assert_eq!(Remote::from_params(&params), Ok(remote()));
        assert_eq!(Remote::from_params(&params["kv_transfer_params"]), Ok(remote()));
        assert_eq!(params["kv_transfer_params"]["remote_num_tokens"], 48);
    }

    #[test]
    fn keys_that_vllm_may_leave_out_may_be_left_out() {
        let mut params = remote().to_params()["kv_transfer_params"].clone();
        for key in ["dcp_size", "pp_size", "remote_num_tokens", "remote_registration_generation", "transfer_mode"] {
            params.as_object_mut().unwrap().remove(key).unwrap();
        }
        assert_eq!(Remote::from_params(&params), Ok(Remote { generation: 0, ..remote() }));
    }

    #[test]
    fn what_is_missing_or_cannot_be_is_told_by_its_key() {
        for key in ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"] {
            let mut params = remote().to_params()["kv_transfer_params"].clone();
            params.as_object_mut().unwrap().remove(key).unwrap();
            assert_eq!(Remote::from_params(&params), Err(missing(key)));
        }
        for (key, value, expected) in [
            ("do_remote_prefill", json!(false), "name nothing to read"),
            ("remote_block_ids", json!([1, 2]), "not a list with a list"),
            ("remote_block_ids", json!([]), "not a list with a list"),
            ("remote_block_ids", json!([[]]), "names no block"),
            ("remote_block_ids", json!([[-1]]), "not a list with a list"),
            ("remote_block_ids", json!([[1], [2]]), "several KV cache groups"),
            ("remote_block_ids", json!([vec![0; MOST_BLOCKS + 1]]), "at most 65536"),
            ("remote_engine_id", json!("x".repeat(300)), "remote_engine_id: "),
            ("remote_request_id", json!(""), "remote_request_id is empty"),
            ("remote_request_id", json!("a,b"), "no such id"),
            ("remote_host", json!(7), "not a string"),
            ("remote_port", json!(0), "expected 1 to 65535"),
            ("remote_port", json!(65536), "expected 1 to 65535"),
            ("remote_port", json!("5711"), "expected a number"),
            ("tp_size", json!(0), "expected 1 to 1024"),
            ("pp_size", json!(2), "pp_size is not 1"),
            ("transfer_mode", json!("push"), "expected \"pull\""),
        ] {
            let mut params = remote().to_params();
            params["kv_transfer_params"][key] = value;
            let told = Remote::from_params(&params).unwrap_err();
            assert!(told.contains(expected), "{key}: {told}");
        }
    }
}
