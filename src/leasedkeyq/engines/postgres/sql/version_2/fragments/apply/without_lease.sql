IF op = 'cancel' THEN
    --> include apply/cancel
