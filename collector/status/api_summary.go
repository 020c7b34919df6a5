package status

import (
	"fmt"
	"slices"
	"strings"

	"gdr_exporter/collector/diagnosis"
)

// summary answers whether GPUDirect RDMA is in use. It is made of the rest of the
// Document, which must be there.
func (b *builder) summary() DocSummary {
	sum := DocSummary{Judged: b.judged}
	for i := range b.doc.Pairs {
		if pair := &b.doc.Pairs[i]; pair.Expected && pair.State != nil {
			sum.count(*pair.State)
		}
	}
	for i := range b.d.Findings {
		switch b.d.Findings[i].Severity {
		case diagnosis.SeverityCritical:
			sum.Critical++
		case diagnosis.SeverityWarning:
			sum.Warnings++
		default:
			sum.Infos++
		}
	}
	sum.Level = sum.level()
	sum.Sentence = b.sentence(&sum)
	sum.Live = some(b.liveSentence())
	return sum
}

func (sum *DocSummary) count(state diagnosis.State) {
	sum.Expected++
	switch state {
	case diagnosis.StateDirect:
		sum.Direct++
	case diagnosis.StateDegraded:
		sum.Degraded++
	case diagnosis.StateStaged:
		sum.Staged++
	case diagnosis.StateUnsupported:
		sum.Unsupported++
	default:
		sum.Unknown++
	}
}

func (sum *DocSummary) level() Level {
	switch {
	case sum.Staged > 0, sum.Degraded > 0, sum.Critical > 0:
		return LevelProblem
	case sum.Warnings > 0:
		return LevelWarning
	case sum.Unknown > 0, !sum.Judged:
		return LevelUnknown
	case sum.Direct > 0:
		return LevelOK
	}
	return LevelNone
}

// sentence answers the question in one sentence, and a second one for the cause or
// the worst finding.
func (b *builder) sentence(sum *DocSummary) string {
	text := b.pairSentence(sum)
	if causes := b.causes(); len(causes) > 0 {
		return fmt.Sprintf("%s Likely cause: %s.", text, strings.Join(causes, "; "))
	}
	if len(b.doc.Findings) == 0 || b.doc.Findings[0].Severity == diagnosis.SeverityInfo {
		return text
	}
	worst := &b.doc.Findings[0]
	return fmt.Sprintf("%s Worst finding: %s%s.", text, lowered(worst.Title), subjectText(&worst.Subject))
}

// causes are the rules that explain why expected pairs are not direct, in words.
func (b *builder) causes() []string {
	var causes []string
	for i := range b.doc.Pairs {
		pair := &b.doc.Pairs[i]
		if !pair.Expected || pair.Cause == nil {
			continue
		}
		if cause := lowered(titleOf(*pair.Cause)); !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
	}
	return causes
}

// lowered is a title within a sentence; names in capitals stay.
func lowered(title string) string {
	if len(title) > 1 && title[0] >= 'A' && title[0] <= 'Z' && title[1] >= 'a' && title[1] <= 'z' {
		return strings.ToLower(title[:1]) + title[1:]
	}
	return title
}

// subjectText says what a finding is about, " (GPU 0000:18:00.0, mlx5_0)".
func subjectText(s *DocSubject) string {
	parts := subjectParts(s)
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func subjectParts(s *DocSubject) []string {
	var parts []string
	if s.GPU != nil {
		parts = append(parts, "GPU "+*s.GPU)
	}
	if s.Device != nil {
		device := *s.Device
		if s.Port != nil {
			device += fmt.Sprintf(" port %d", *s.Port)
		}
		parts = append(parts, device)
	}
	if s.Address != nil {
		parts = append(parts, "PCI function "+*s.Address)
	}
	if s.Other != nil {
		parts = append(parts, *s.Other)
	}
	return parts
}

func (b *builder) pairSentence(sum *DocSummary) string {
	switch {
	case !sum.Judged:
		return "Whether GPUDirect RDMA works here is not judged: the collector path is switched off, or nothing is known yet."
	case sum.Expected == 0:
		return b.nothingExpected()
	case sum.Direct == sum.Expected:
		return fmt.Sprintf("GPUDirect RDMA works on %s%s.", allOf(sum.Expected), b.evidence())
	}
	var not []string
	for _, part := range []struct {
		n    int
		text string
		is   diagnosis.State
	}{
		{sum.Staged, "staged through host memory", diagnosis.StateStaged}, {sum.Degraded, "degraded", diagnosis.StateDegraded},
		{sum.Unsupported, "unsupported", diagnosis.StateUnsupported}, {sum.Unknown, "not known", diagnosis.StateUnknown},
	} {
		if part.n > 0 {
			not = append(not, fmt.Sprintf("%d %s%s", part.n, part.text, b.named(part.is)))
		}
	}
	if sum.Unknown == sum.Expected-sum.Direct {
		return fmt.Sprintf("Whether GPUDirect RDMA works is not known of %d of %s; it works on %d.", sum.Unknown, expectedPairsText(sum.Expected), sum.Direct)
	}
	return fmt.Sprintf("GPUDirect RDMA works on %d of %s only: %s.", sum.Direct, expectedPairsText(sum.Expected), strings.Join(not, ", "))
}

// mostNamed bounds the pairs that a sentence names.
const mostNamed = 2

// named names the expected pairs of a state, " (GPU 0000:18:00.0 with mlx5_0)", ""
// if they are many.
func (b *builder) named(state diagnosis.State) string {
	var names []string
	for i := range b.doc.Pairs {
		if pair := &b.doc.Pairs[i]; pair.Expected && pair.State != nil && *pair.State == state {
			names = append(names, fmt.Sprintf("GPU %s with %s", pair.GPU, pair.Device))
		}
	}
	if len(names) == 0 || len(names) > mostNamed {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func expectedPairsText(n int) string {
	if n == 1 {
		return "1 expected GPU-NIC pair"
	}
	return fmt.Sprintf("%d expected GPU-NIC pairs", n)
}

func allOf(n int) string {
	if n == 1 {
		return "the 1 expected GPU-NIC pair"
	}
	return fmt.Sprintf("all %d expected GPU-NIC pairs", n)
}

// evidence says how sure the expected pairs' being direct is.
func (b *builder) evidence() string {
	counts := map[diagnosis.Evidence]int{}
	for i := range b.doc.Pairs {
		if pair := &b.doc.Pairs[i]; pair.Expected && pair.Evidence != nil {
			counts[*pair.Evidence]++
		}
	}
	var parts []string
	for _, e := range []struct {
		evidence diagnosis.Evidence
		text     string
	}{
		{diagnosis.EvidenceMeasured, "measured"}, {diagnosis.EvidenceRegistered, "registered, no rate measured yet"}, {diagnosis.EvidenceInferred, "inferred, not measured"},
	} {
		if n := counts[e.evidence]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, e.text))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

// nothingExpected says why no pair is.
func (b *builder) nothingExpected() string {
	gpus, devices := len(b.doc.GPUs), len(b.doc.Devices)
	switch {
	case gpus == 0 && devices == 0:
		return "There is neither a GPU nor an RDMA device on this node, so there is no GPUDirect RDMA to judge."
	case gpus == 0:
		return "There is no NVIDIA GPU on this node, so there is no GPUDirect RDMA to judge."
	case devices == 0:
		return "There is no RDMA device on this node, so there is no GPUDirect RDMA to judge."
	}
	return "No GPU-NIC pair of this node is expected to use GPUDirect RDMA: no compute NIC is near enough to a GPU for libraries to use it (PIX, PXB or P2C), or their distance is not shown here."
}

// liveSentence says whether jobs use GPUDirect RDMA now, "" if it was asked of no device.
func (b *builder) liveSentence() string {
	counts := map[diagnosis.Live]int{}
	total := 0
	for i := range b.doc.Devices {
		if live := b.doc.Devices[i].Live; live != nil {
			counts[*live]++
			total++
		}
	}
	if total == 0 {
		return ""
	}
	var parts []string
	for _, l := range []struct {
		live diagnosis.Live
		text string
	}{
		{diagnosis.LiveInUse, "a job uses GPUDirect RDMA through %s"}, {diagnosis.LiveSuspect, "a job seems to stage through host memory on %s"},
		{diagnosis.LiveIdle, "no job uses %s"}, {diagnosis.LiveCannotTell, "it cannot be told whether jobs use GPUDirect RDMA through %s"},
	} {
		if n := counts[l.live]; n > 0 {
			parts = append(parts, fmt.Sprintf(l.text, plural(n, "compute NIC")))
		}
	}
	return "Right now " + strings.Join(parts, "; ") + "."
}
