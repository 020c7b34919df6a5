package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
)

// schemas are the schemas by their files, each with the source of its types.
var schemas = []struct {
	file, source, root, title string
	served                    func() []byte
}{
	{"api.schema.json", "api.go", "Document", "Status of gdr_exporter", Schema},
	{"api.peers.schema.json", "api_peers.go", "DocPeers", "Peers of gdr_exporter", PeersSchema},
}

// enums are the values of the types of texts that have a fixed set of them.
var enums = map[string][]string{
	"Level": texts(Levels), "diagnosis.State": texts(diagnosis.States), "diagnosis.Evidence": texts(diagnosis.Evidences), "diagnosis.Live": texts(diagnosis.Lives),
	"diagnosis.Severity": texts([]diagnosis.Severity{diagnosis.SeverityInfo, diagnosis.SeverityWarning, diagnosis.SeverityCritical}), "diagnosis.Result": texts(diagnosis.Results),
	"diagnosis.Effect": texts([]diagnosis.Effect{diagnosis.EffectStages, diagnosis.EffectInvalid, diagnosis.EffectNone, diagnosis.EffectRemark}),
	"profile.Source":   texts([]profile.Source{profile.SourceFile, profile.SourceEmbedded, profile.SourceLearned, profile.SourceNone}),
	"profile.Field":    texts([]profile.Field{profile.FieldGPUs, profile.FieldPorts, profile.FieldPortRate, profile.FieldDevices, profile.FieldNVLinks, profile.FieldDirectPairs, profile.FieldLoopback}),
	"snapshot.Presence": texts([]snapshot.Presence{
		snapshot.PresenceNVML, snapshot.PresenceLost, snapshot.PresencePassthrough, snapshot.PresenceUnbound, snapshot.PresenceOther, snapshot.PresenceHidden, snapshot.PresenceUnseen,
	}),
}

func texts[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i := range all {
		out[i] = string(all[i])
	}
	return out
}

// schemaOf makes the JSON Schema of the types in a source file.
func schemaOf(t *testing.T, path, name, title string) []byte {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	defs := map[string]any{}
	for _, decl := range file.Decls {
		general, is := decl.(*ast.GenDecl)
		if !is || general.Tok != token.TYPE {
			continue
		}
		for _, spec := range general.Specs {
			named := spec.(*ast.TypeSpec)
			if structure, is := named.Type.(*ast.StructType); is {
				defs[named.Name.Name] = objectSchema(t, structure, comment(general.Doc))
			}
		}
	}
	root := defs[name].(map[string]any)
	delete(defs, name)
	root["$schema"], root["title"], root["$defs"] = "https://json-schema.org/draft/2020-12/schema", title, defs
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func comment(groups ...*ast.CommentGroup) string {
	var all []string
	for _, group := range groups {
		if group != nil {
			all = append(all, strings.Fields(group.Text())...)
		}
	}
	return strings.Join(all, " ")
}

// objectSchema is the schema of a structure: every field is always there.
func objectSchema(t *testing.T, structure *ast.StructType, doc string) map[string]any {
	t.Helper()
	properties, required := map[string]any{}, []string{}
	for _, field := range structure.Fields.List {
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
		if name == "" || len(field.Names) != 1 {
			t.Errorf("field %v has no name in JSON", field.Names)
		}
		schema := typeSchema(t, field.Type)
		if text := comment(field.Doc, field.Comment); text != "" {
			schema["description"] = text
		}
		properties[name] = schema
		required = append(required, name)
	}
	return map[string]any{"type": "object", "description": doc, "properties": properties, "required": required, "additionalProperties": true}
}

func typeSchema(t *testing.T, expression ast.Expr) map[string]any {
	t.Helper()
	switch e := expression.(type) {
	case *ast.StarExpr:
		return map[string]any{"anyOf": []any{typeSchema(t, e.X), map[string]any{"type": "null"}}}
	case *ast.ArrayType:
		return map[string]any{"type": []string{"array", "null"}, "items": typeSchema(t, e.Elt)}
	case *ast.SelectorExpr:
		name := fmt.Sprintf("%s.%s", e.X, e.Sel)
		if name == "time.Time" {
			return map[string]any{"type": "string", "format": "date-time"}
		}
		return named(t, name)
	case *ast.Ident:
		switch e.Name {
		case "string":
			return map[string]any{"type": "string"}
		case "bool":
			return map[string]any{"type": "boolean"}
		case "int":
			return map[string]any{"type": "integer"}
		case "uint64":
			return map[string]any{"type": "integer", "minimum": 0}
		case "float64":
			return map[string]any{"type": "number"}
		}
		return named(t, e.Name)
	}
	t.Fatalf("type %T has no schema", expression)
	return nil
}

func named(t *testing.T, name string) map[string]any {
	t.Helper()
	if values := enums[name]; values != nil {
		return map[string]any{"type": "string", "enum": values}
	}
	if !strings.HasPrefix(name, "Doc") {
		t.Fatalf("type %s is not known", name)
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// TestSchema: the served schemas are those of the types.
func TestSchema(t *testing.T) {
	for _, schema := range schemas {
		want := schemaOf(t, schema.source, schema.root, schema.title)
		if *update {
			if err := os.WriteFile(schema.file, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !bytes.Equal(schema.served(), want) {
			t.Errorf("%s is not that of %s: go test ./collector/status -run TestSchema -update", schema.file, schema.source)
		}
	}
}

// TestDocumentsMatchSchema: what is served is of the schema, whatever is known.
func TestDocumentsMatchSchema(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	pages := browserPages(t)
	pages["nothing"] = Page{Snapshot: &snapshot.Snapshot{}}
	pages["hostile"] = hostilePage()
	for name, page := range pages {
		document := decoded(t, page)
		for _, problem := range mismatches(schema, schema["$defs"].(map[string]any), document, "$") {
			t.Errorf("%s: %s", name, problem)
		}
		if name == "h100-8x8" {
			delete(document.(map[string]any), "summary")
			document.(map[string]any)["pairs"].([]any)[0].(map[string]any)["state"] = "splendid"
			if got := mismatches(schema, schema["$defs"].(map[string]any), document, "$"); len(got) != 2 {
				t.Errorf("a document with 2 mistakes has %q", got)
			}
		}
	}
}

// decoded is a page's JSON, read back.
func decoded(t *testing.T, page Page) any {
	t.Helper()
	var b bytes.Buffer
	if err := page.Document().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(b.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// mismatches says where a value is not of a schema, as far as ours go.
func mismatches(schema, defs map[string]any, value any, at string) []string {
	if ref, is := schema["$ref"].(string); is {
		return mismatches(defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any), defs, value, at)
	}
	if options, is := schema["anyOf"].([]any); is {
		first := mismatches(options[0].(map[string]any), defs, value, at)
		if value == nil {
			return nil
		}
		return first
	}
	if !slices.Contains(typesOf(schema), typeOf(value)) && (typeOf(value) != "integer" || !slices.Contains(typesOf(schema), "number")) {
		return []string{fmt.Sprintf("%s is %s, want %v", at, typeOf(value), schema["type"])}
	}
	var problems []string
	switch v := value.(type) {
	case string:
		if enum, is := schema["enum"].([]any); is && !slices.Contains(enum, any(v)) {
			problems = append(problems, fmt.Sprintf("%s is %q", at, v))
		}
	case []any:
		for i := range v {
			problems = append(problems, mismatches(schema["items"].(map[string]any), defs, v[i], fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		properties := schema["properties"].(map[string]any)
		for _, name := range schema["required"].([]any) {
			if _, there := v[name.(string)]; !there {
				problems = append(problems, fmt.Sprintf("%s has no %s", at, name))
			}
		}
		for name := range v {
			property, is := properties[name].(map[string]any)
			if !is {
				problems = append(problems, fmt.Sprintf("%s has %s, which is not in the schema", at, name))
				continue
			}
			problems = append(problems, mismatches(property, defs, v[name], at+"."+name)...)
		}
	}
	return problems
}

func typesOf(schema map[string]any) []string {
	switch t := schema["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, name := range t {
			all = append(all, name.(string))
		}
		return all
	}
	return nil
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}
