"""What a drafter costs to train and what that brings: the plan beforehand, the ablation and the throughput measured."""
