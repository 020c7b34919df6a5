package status

import (
	_ "embed" // the schema
)

//go:embed api.schema.json
var schemaText []byte

// Schema returns the JSON Schema (draft 2020-12) of Document. It is made of the types
// in api.go and their comments, by this package's tests.
func Schema() []byte { return schemaText }

//go:embed api.peers.schema.json
var peersSchemaText []byte

// PeersSchema returns the JSON Schema (draft 2020-12) of DocPeers, made like Schema.
func PeersSchema() []byte { return peersSchemaText }
