package status

import (
	_ "embed" // the schema
)

//go:embed api.schema.json
var schemaText []byte

// Schema returns the JSON Schema (draft 2020-12) of Document. It is made of the types
// in api.go and their comments, by this package's tests.
func Schema() []byte { return schemaText }
