package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// Sample is a sample of a query's result.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query asks Prometheus for an instant vector.
func (s *Stack) Query(ctx context.Context, query string) ([]Sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Prometheus+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
				Value  [2]any            `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", query, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", query, answer.Error)
	}
	samples := make([]Sample, 0, len(answer.Data.Result))
	for _, result := range answer.Data.Result {
		text, _ := result.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", query, err)
		}
		samples = append(samples, Sample{result.Metric, value})
	}
	return samples, nil
}
