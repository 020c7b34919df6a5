package peertest

import (
	"math"
	"reflect"
	"time"

	"gdr_exporter/rdma/peer"
)

// Hostile is a Status in which every text is the given one, and every number with a
// fraction is none. Classes, kinds and memories stay what they are, so that views look
// at the rest.
func Hostile(text string, at time.Time) *peer.Status {
	s := Status(6, 2, at)
	Away(&s.Peers[0])
	Denied(&s.Peers[1])
	Cut(&s.Peers[2].Paths[0])
	Corrupt(s.Peers[3].Paths[0].Bandwidth[0], 7)
	Sum(s)
	spoil(reflect.ValueOf(s).Elem(), text)
	return s
}

func spoil(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		switch v.Type().Name() {
		case "Class", "Kind", "Memory", "Direction":
		default:
			v.SetString(text)
		}
	case reflect.Float64:
		v.SetFloat(math.NaN())
	case reflect.Pointer:
		if !v.IsNil() {
			spoil(v.Elem(), text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			spoil(v.Index(i), text)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			spoil(value, text)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type() != reflect.TypeFor[time.Time]() {
				spoil(v.Field(i), text)
			}
		}
	default:
	}
}
