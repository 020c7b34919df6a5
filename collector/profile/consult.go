package profile

// Consult returns a Book that goes by what another one has learned, which may be
// nil, and learns nothing.
func Consult(options Options, learned *Learned) *Book {
	options.Learn = false
	b := New(options)
	if learned != nil {
		b.learned = learned
	}
	return b
}
