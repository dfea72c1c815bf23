"""DynaTree adaptive: ablation, scaling, sensitivity, memory, and their figures."""
