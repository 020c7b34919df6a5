package stack

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Self is what Prometheus says of itself on its own page.
type Self map[string]*dto.MetricFamily

// Self reads it.
func (s *Stack) Self(ctx context.Context) (Self, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Prometheus+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("page of Prometheus itself: %w", err)
	}
	return families, nil
}

// Of are the samples of a family of gauges or counters.
func (s Self) Of(family string) []Sample {
	var samples []Sample
	for _, m := range s[family].GetMetric() {
		labels := map[string]string{}
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		samples = append(samples, Sample{labels, m.GetGauge().GetValue() + m.GetCounter().GetValue()})
	}
	return samples
}

// Sum is the sum of a family's samples.
func (s Self) Sum(family string) float64 {
	sum := 0.0
	for _, sample := range s.Of(family) {
		sum += sample.Value
	}
	return sum
}
